"""Collectives built from point-to-point messages, the naive one before the good one."""
