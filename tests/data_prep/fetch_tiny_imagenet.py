"""``python fetch_tiny_imagenet.py MIRROR ROOT`` prints ``ready``, waits for a line, then stages TinyImageNet."""

import sys
import time

import PIL.Image  # noqa: F401  (so that its import is not in the time)

from data_prep import staging

print("ready", flush=True)
sys.stdin.readline()
began = time.monotonic()
staging.fetch("tiny-imagenet", sys.argv[2], mirror=sys.argv[1])
print(f"took {time.monotonic() - began}")
