"""Models and measures of speed."""

from course_lib.metrics.speed import (
    efficiency,
    saturation_knee,
    speedup,
    steady_throughput,
    weak_efficiency,
    weak_speedup,
)

__all__ = ["efficiency", "saturation_knee", "speedup", "steady_throughput", "weak_efficiency", "weak_speedup"]
