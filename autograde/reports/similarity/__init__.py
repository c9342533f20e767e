"""Submissions that are alike, found and shown."""
