"""The training loop, and whole trainings that labs compare or hand in."""

from course_lib.training.loop import EarlyStopping, History, evaluate, fit, train_epoch, train_step, warmup_then_decay

__all__ = ["EarlyStopping", "History", "evaluate", "fit", "train_epoch", "train_step", "warmup_then_decay"]
