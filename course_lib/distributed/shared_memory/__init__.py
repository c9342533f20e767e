"""Processes that train one model in shared memory."""
