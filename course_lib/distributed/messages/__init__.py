"""Process groups, and what goes between their ranks: recorded, ordered, drawn, compared."""
