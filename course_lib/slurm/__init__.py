"""What grading and sweeping on a Slurm cluster share: reading ``--slurm KEY=VALUE``, and asking Slurm about jobs."""
