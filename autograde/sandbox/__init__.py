"""Runs untrusted code, and gets plain data back."""
