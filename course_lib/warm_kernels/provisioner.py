"""A kernel provisioner (Jupyter's own extension point) whose kernels are forks of the warm process."""

from __future__ import annotations

import os
import sys
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning import LocalProvisioner
from traitlets import List, Unicode

from course_lib.warm_kernels.client import WarmServer

__all__ = ["WarmProvisioner"]


class WarmProvisioner(LocalProvisioner):
    """Provisioner ``lab-warm``.

    Kernels of this Python environment come from the warm process; any other kernel is started as usual.
    """

    server = Unicode("", config=True, help="Socket of the warm process; empty: the account's shared one.")
    cpus = List([], config=True, help="The cores that the kernel may use; empty: all.")

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Fork the kernel."""
        if not _is_ours(cmd):
            return await super().launch_kernel(cmd, **kwargs)
        server = WarmServer(self.server) if self.server else WarmServer.shared()
        self.process = server.fork(
            "course_lib.warm_kernels.kernel",
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
    python = os.path.basename(cmd[0]) if cmd[0] == os.path.basename(cmd[0]) else os.path.realpath(cmd[0])
    return "ipykernel_launcher" in cmd and (
        python.startswith("python") if "/" not in python else python == os.path.realpath(sys.executable)
    )
