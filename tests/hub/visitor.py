"""Somebody who asks the hub over HTTP, signed in or not."""

import contextlib
import json
import re
import socket
import time

import requests
from websocket import create_connection


class Visitor:
    """Requests with the cookies of one browser; without a name, anonymous."""

    def __init__(self, hub, name: str | None = None) -> None:
        self.hub, self.name, self.web = hub, name, requests.Session()
        self.token = None
        if name:
            assert self.sign_in(name, hub.passwords[name]), f"{name} could not sign in"

    def sign_in(self, name: str, password: str) -> bool:
        """The login form; whether it let us in."""
        self.get("/hub/login")
        data = {"username": name, "password": password, "_xsrf": self.web.cookies.get("_xsrf", path="/hub/")}
        self.web.post(f"{self.hub.address}/hub/login", data=data, allow_redirects=False, timeout=60)
        return any(cookie.name == "jupyterhub-hub-login" for cookie in self.web.cookies)

    def get(self, path: str, **options) -> requests.Response:
        """GET a path of the hub, with the cookies."""
        return self.web.get(self.hub.address + path, timeout=60, **options)

    def by_token(self, method: str, path: str, token: str | None = None, **options) -> requests.Response:
        """Ask with a token (our own, if none is given) and no cookies."""
        if token is None and self.token is None:
            self.token = self._new_token()
        headers = {"Authorization": f"token {token or self.token}"}
        address = path if path.startswith("http") else self.hub.address + path
        options = {"timeout": 60, "allow_redirects": False, **options}
        return requests.request(method, address, headers=headers, **options)

    def status_at(self, port: int, path: str, seconds: float = 3) -> int | None:
        """What a port of loopback answers to our token; None where it speaks no HTTP."""
        asked = f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nAuthorization: token {self.token}\r\n\r\n"
        said = b""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=seconds) as one:
            one.sendall(asked.encode())
            while len(said) < 12 and (more := one.recv(64)):
                said += more
        found = re.match(rb"HTTP/1\.[01] (\d{3})", said)
        return int(found[1]) if found else None

    def _new_token(self) -> str:
        self.get("/hub/token")
        headers = {"X-XSRFToken": self.web.cookies.get("_xsrf", path="/hub/")}
        made = self.web.post(f"{self.hub.address}/hub/api/users/{self.name}/tokens", headers=headers, timeout=60)
        made.raise_for_status()
        return made.json()["token"]

    def start_server(self) -> None:
        """Our own server, until it answers."""
        self.by_token("POST", f"/hub/api/users/{self.name}/server")
        for _ in range(240):
            if self.by_token("GET", f"/user/{self.name}/api/status").status_code == 200:
                return
            time.sleep(0.5)
        raise TimeoutError(f"{self.name}'s server does not answer")

    def run(self, program: str, *arguments: str) -> object:
        """Run a Python program in a terminal of our server; what it left in ``said.json``."""
        base = f"/user/{self.name}"
        self.by_token("DELETE", f"{base}/api/contents/said.json")
        for name, text in (("probe.py", program), ("probe.json", json.dumps(arguments))):
            body = {"type": "file", "format": "text", "content": text}
            self.by_token("PUT", f"{base}/api/contents/{name}", json=body).raise_for_status()
        terminal = self.by_token("POST", f"{base}/api/terminals").json()["name"]
        address = f"{self.hub.address.replace('http', 'ws')}{base}/terminals/websocket/{terminal}"
        terminal_socket = create_connection(address, header=[f"Authorization: token {self.token}"], timeout=60)
        try:
            terminal_socket.send(json.dumps(["stdin", "cd; python probe.py && mv said.part said.json\r"]))
            for _ in range(240):
                said = self.by_token("GET", f"{base}/api/contents/said.json?format=text")
                if said.status_code == 200:
                    return json.loads(said.json()["content"])
                time.sleep(0.5)
        finally:
            terminal_socket.close()
            self.by_token("DELETE", f"{base}/api/terminals/{terminal}")
        raise TimeoutError("the program in the terminal said nothing")


def is_login_page(answer: requests.Response) -> bool:
    """Whether this is the hub's login form and nothing else."""
    return answer.url.partition("?")[0].endswith("/hub/login") and bool(re.search(r'id="password_input"', answer.text))
