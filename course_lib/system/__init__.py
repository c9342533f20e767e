"""The machine and its files; no training."""
