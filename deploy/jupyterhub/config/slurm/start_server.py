"""Inside a job: choose a port, report it to the hub, and become the server.

The hub refuses a job that it no longer waits for (it was restarted, the start was called off); such a job ends here
and holds its node no longer. Only the standard library is used: nothing of the student's is loaded before the server.
"""

import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

TIMEOUT = 180  # seconds that a hub may take to come back


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


def report(port: int, timeout: float = TIMEOUT) -> None:
    """Report the port to the hub; exits with the reason where the hub refuses it."""
    request = urllib.request.Request(
        f"{os.environ['JUPYTERHUB_API_URL']}/batchspawner",
        data=json.dumps({"port": port}).encode(),
        headers={"Authorization": f"token {os.environ['JUPYTERHUB_API_TOKEN']}"},
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + timeout
    while True:
        try:
            direct.open(request, timeout=20).close()
            return
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                sys.exit(f"the hub does not wait for this job any more ({error.code} {error.reason}); it ends")
            if time.monotonic() > end:
                sys.exit(f"no hub at {os.environ['JUPYTERHUB_API_URL']} ({error}); the job ends")
        time.sleep(min(3, timeout))


def main() -> None:
    """``start_server.py PROGRAM [argument ...]``."""
    port = free_port()
    report(port)
    wanted = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    os.environ["JUPYTERHUB_SERVICE_URL"] = wanted._replace(netloc=f"{wanted.hostname}:{port}").geturl()
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
