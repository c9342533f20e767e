"""What the labs import."""
