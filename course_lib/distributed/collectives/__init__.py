"""Collectives made of messages, the naive one before the good one."""
