"""One model on all ranks: gradients averaged naively, while backward runs, in buckets."""
