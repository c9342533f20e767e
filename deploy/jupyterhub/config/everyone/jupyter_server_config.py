"""Jupyter Server's settings for every server of the hub."""

import atexit
import os
import shutil
import tempfile

c = get_config()  # noqa: F821  (jupyter_server provides it)
c.ServerApp.default_url = "/lab"
# Kernels hold memory and GPUs after their tab is closed. A kernel that computes is not idle.
minutes = int(os.environ.get("COURSE_HUB_IDLE_MINUTES", "60"))
c.MappingKernelManager.cull_idle_timeout = 60 * minutes
c.MappingKernelManager.cull_interval = 60
c.MappingKernelManager.cull_connected = True
c.ResourceUseDisplay.track_cpu_percent = True
# A login shell would begin with the system's PATH, in which there is no `lab` and no `nbgrader`.
c.ServerApp.terminado_settings = {"shell_command": ["/bin/bash"]}
# A kernel's five TCP ports are chosen before the kernel takes them, so another's program can have one by then, and every
# account can reach them. Sockets in a folder of one's own have neither fault. A socket's path ends at 107 bytes, and
# homes may be long or on NFS, hence /tmp. A terminal's `jupyter` finds the folder by the variable.
if "JUPYTER_RUNTIME_DIR" not in os.environ:
    runtime = os.environ["JUPYTER_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="jupyter-", dir="/tmp")
    atexit.register(shutil.rmtree, runtime, ignore_errors=True)
c.KernelManager.transport = "ipc"
