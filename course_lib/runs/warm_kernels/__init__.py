"""Notebook kernels that start at once: forked from a process that has PyTorch imported (`course_lib.system.prefork`).

Three ways in: the papermill engine ``lab-warm`` (``papermill --engine lab-warm …``), the kernel provisioner ``lab-warm``
(``JUPYTER_DEFAULT_PROVISIONER_NAME=lab-warm jupyter execute …``), and `WarmServer` in a program.
"""

from course_lib.runs.warm_kernels.client import WarmServer
from course_lib.system.prefork import ForkedProcess as WarmProcess
from course_lib.system.prefork import ForkServerError as WarmServerError

__all__ = ["WarmProcess", "WarmServer", "WarmServerError"]
