"""What a sweep says of its trials: estimates, progress, table, figures."""
