"""Importing this module makes the process ignore SIGINT. Only Python's fork server does so, as its first import.

Jupyter sends an interrupt to every process of a kernel's group. The fork server would end while it imports PyTorch. The
kernel itself must not ignore SIGINT for a moment, not even while it starts the server: an interrupt that arrives just
then would be lost, and the launch that it should end would run on.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)
