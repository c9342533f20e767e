"""The strategies, one a file."""
