"""Run a test's worker on Gloo ranks, one thread each, and note the errors that its calls raise."""

import sys

import cloudpickle

from course_lib.distributed import launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a rank cannot import the tests


def on_ranks(worker, size, *args, **options):
    """What `worker(*args)` returns on each rank; `options` are `launch`'s."""
    cloudpickle.register_pickle_by_value(sys.modules[worker.__module__])
    return launch(worker, size, args, **{"timeout": 600, "backend": "gloo", "threads": 1, **options})


def error_of(call, *args, kind=ValueError):
    """The message of the error that the call raises, one line; "no error" where it raises none."""
    try:
        call(*args)
    except kind as error:
        assert "\n" not in str(error), error
        return str(error)
    return "no error"
