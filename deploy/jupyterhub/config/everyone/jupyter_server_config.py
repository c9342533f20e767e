"""Jupyter Server's settings for every server of the hub."""

import os

c = get_config()  # noqa: F821  (jupyter_server provides it)
# Kernels hold memory and GPUs after their tab is closed. A kernel that computes is not idle.
minutes = int(os.environ.get("COURSE_HUB_IDLE_MINUTES", "60"))
c.MappingKernelManager.cull_idle_timeout = 60 * minutes
c.MappingKernelManager.cull_interval = 60
c.MappingKernelManager.cull_connected = True
c.ResourceUseDisplay.track_cpu_percent = True
# A login shell would begin with the system's PATH, in which there is no `lab` and no `nbgrader`.
c.ServerApp.terminado_settings = {"shell_command": ["/bin/bash"]}
