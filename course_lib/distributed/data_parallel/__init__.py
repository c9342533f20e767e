"""Data parallelism: one model on all ranks, gradients averaged after backward, during backward, in buckets."""
