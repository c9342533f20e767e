"""What a sweep says of its points: estimates, progress, table, figures."""
