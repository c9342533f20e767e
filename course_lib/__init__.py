"""What the labs import."""

import atexit
import gc
import os

# Of PyTorch's profiler, which else writes a line to standard error at each start and stop; read as PyTorch is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

# Python looks for garbage once more as it ends, in all objects of all libraries: one to two seconds after PyTorch's import.
atexit.register(gc.freeze)
