"""Runs a notebook once, or over a grid, and keeps its results."""
