"""Exercises on several ranks: process groups whose messages and collectives are counted, and who starts the ranks."""
