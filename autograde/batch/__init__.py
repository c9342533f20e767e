"""Distributes submissions to workers: a pool on this machine, or an array of jobs on Slurm."""
