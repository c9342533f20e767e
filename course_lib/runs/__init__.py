"""Runs a notebook once, or over a grid, and keeps what it leaves behind."""
