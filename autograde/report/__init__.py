"""The instructor's HTML page."""
