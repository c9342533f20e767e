"""The training loop, and whole trainings that labs compare or hand in."""

# By name, and not by `*`: in a sandbox a withheld module has any name, but no list of names.
from course_lib.training.loop import EarlyStopping as EarlyStopping
from course_lib.training.loop import History as History
from course_lib.training.loop import evaluate as evaluate
from course_lib.training.loop import fit as fit
from course_lib.training.loop import train_epoch as train_epoch
from course_lib.training.loop import train_step as train_step
from course_lib.training.loop import warmup_then_decay as warmup_then_decay
