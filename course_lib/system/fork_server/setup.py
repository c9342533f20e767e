"""Set up Python's fork server: its first import, see `course_lib.distributed.launching.forked_ranks`.

The fork server ignores SIGINT. Jupyter sends an interrupt to every process of a kernel's group, and it would end the fork
server while it imports PyTorch. The kernel itself must never ignore SIGINT, not even while it starts the server: it would
lose an interrupt that arrives just then, and the launch would run on.

The fork server has one thread: libraries that start a pool of threads at their import would make it unfit to fork. While
it imports it does not look for garbage, of which imports make little: that takes a fifth of their time.
"""

import gc
import os
import signal

from course_lib.system.fork_server import SAFE_PATH

gc.disable()  # until `ready`

signal.signal(signal.SIGINT, signal.SIG_IGN)
if os.environ.get("PYTHONSAFEPATH") == SAFE_PATH:  # it was for the imports here, not for what the processes start
    del os.environ["PYTHONSAFEPATH"]
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # a rank gets its environment from its launch
