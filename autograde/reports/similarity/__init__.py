"""Find submissions that are alike."""
