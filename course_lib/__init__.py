"""What the labs import."""

import os

# Of PyTorch's profiler, which else writes a line to standard error at each start and stop; read as PyTorch is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
