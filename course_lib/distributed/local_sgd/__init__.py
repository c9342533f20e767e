"""Workers that train independently and average their weights, once or every few steps."""
