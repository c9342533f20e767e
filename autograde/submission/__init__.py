"""Reads a student's files as data."""
