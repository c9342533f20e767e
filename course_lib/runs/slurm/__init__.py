"""The common parts of grading and sweeping on Slurm: options of sbatch, job arrays, and watching them to their end."""
