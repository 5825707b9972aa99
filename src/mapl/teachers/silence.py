"""The same surroundings for every teacher, wherever it is trained: no warnings, one
thread, no workers of its own.
"""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import joblib
import numpy as np
from threadpoolctl import threadpool_limits

_lock = threading.RLock()
_depth = 0


@contextmanager
def teacher_surroundings() -> Iterator[None]:
    """No warning leaves, and none becomes an error; one thread; no workers.

    The last bits of a result depend on the number of threads, and workers that a
    learner starts would live on. Warning filters belong to the process, so one thread
    enters at a time. Entered again inside, it does nothing: looking for the numerical
    libraries takes milliseconds.
    """
    global _depth
    with _lock:
        _depth += 1
        try:
            if _depth > 1:
                yield
                return
            with (
                warnings.catch_warnings(),
                np.errstate(all="ignore"),
                threadpool_limits(1),
                joblib.parallel_config("sequential"),
            ):
                warnings.simplefilter("ignore")
                yield
        finally:
            _depth -= 1
