"""Right functions and known mistakes of each lab: never in a student's wheel, never in a sandbox."""
