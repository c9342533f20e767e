"""What the labs import."""

import os

# PyTorch's profiler writes a line to standard error at each start and stop; its log level is read as PyTorch is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "5")
