"""Six ways to train the same network on the same number of samples, run and measured by one harness.

`single`, `synchronous` (the HW4 slides, Algorithm 1), `parameter server` (Algorithm 2), `parallel SGD` (the parallel
SGD lab: average once), `local SGD` (average every few steps) and `HogWild` (shared memory, no lock).
"""

from course_lib.training.strategies.comparison import compare, results_table
from course_lib.training.strategies.result import CurvePoint, StrategyResult
from course_lib.training.strategies.run import STRATEGIES, run_strategy
from course_lib.training.strategies.task import Task
from course_lib.training.strategies.weight_health import WeightHealth, check_weight_health
from course_lib.training.strategies.worker_shard import state_vector

__all__ = [
    "STRATEGIES",
    "CurvePoint",
    "StrategyResult",
    "Task",
    "WeightHealth",
    "check_weight_health",
    "compare",
    "results_table",
    "run_strategy",
    "state_vector",
]
