"""What grading and sweeping on a Slurm cluster share: options of sbatch, job arrays, and watching them to their end."""
