"""A kernel provisioner (Jupyter's own extension point) whose kernels are forks of the warm process."""

import asyncio
import os
import sys
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning import LocalProvisioner
from traitlets import List, Unicode

from course_lib.runs.warm_kernels.client import WarmServer

__all__ = ["WarmProvisioner"]


class WarmProvisioner(LocalProvisioner):
    """Provisioner ``lab-warm``.

    Kernels of this Python environment come from the warm process; any other kernel is started as usual.
    """

    server = Unicode("", config=True, help="Socket of the warm process; empty: the account's shared one.")
    cpus = List([], config=True, help="The cores that the kernel may use; empty: the client's.")

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Fork the kernel."""
        if not _is_ours(cmd):
            return await super().launch_kernel(cmd, **kwargs)
        server = WarmServer(self.server) if self.server else await asyncio.to_thread(WarmServer.shared)
        self.process = server.fork(
            "course_lib.runs.warm_kernels.kernel",
            "main",
            cmd[cmd.index("ipykernel_launcher") + 1 :],
            environment=kwargs.get("env"),
            folder=kwargs.get("cwd"),
            cpus=self.cpus,
        )
        self.pid = self.pgid = self.process.pid
        self.cwd = kwargs.get("cwd") or os.getcwd()
        return self.connection_info

    async def wait(self) -> int | None:
        """Wait for the kernel's end."""
        code = await super().wait()
        self.pgid = None
        return code


def _is_ours(cmd: list[str]) -> bool:
    # An environment is its interpreter's folder: the interpreter itself is often a link to one that others have too.
    theirs, mine = cmd[0], sys.executable
    return (
        "ipykernel_launcher" in cmd
        and os.path.realpath(os.path.dirname(theirs)) == os.path.realpath(os.path.dirname(mine))
        and os.path.realpath(theirs) == os.path.realpath(mine)
    )
