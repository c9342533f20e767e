"""A sweep as an array of Slurm's jobs."""
