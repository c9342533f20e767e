"""Who grades which submission, when: a pool of workers here, or an array of jobs on Slurm."""
