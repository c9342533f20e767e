"""Workers that train alone, and average their weights at the end."""
