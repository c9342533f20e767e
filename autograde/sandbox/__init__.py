"""Runs untrusted code and returns plain data."""
