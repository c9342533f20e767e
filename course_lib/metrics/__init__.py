"""Models and measures of speed."""

# By name, and not by `*`: the module may be withheld in a sandbox, where it has any name and no list of them.
from course_lib.metrics.speed import efficiency as efficiency
from course_lib.metrics.speed import saturation_knee as saturation_knee
from course_lib.metrics.speed import speedup as speedup
