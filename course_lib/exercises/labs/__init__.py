"""The descriptions, a file a lab."""
