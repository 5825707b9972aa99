"""The same surroundings for every teacher, wherever it is trained: no warnings, one
thread, no workers of its own.
"""

import random
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import joblib
import numpy as np
from threadpoolctl import ThreadpoolController


def seed_everything(*seed: int) -> None:
    """Seed the generators that a learner may use without saying so."""
    (state,) = np.random.SeedSequence(seed).generate_state(1)
    random.seed(int(state))
    np.random.seed(int(state))  # noqa: NPY002 - the one that others use
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(int(state))


@contextmanager
def _generators_restored() -> Iterator[None]:
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


@lru_cache(maxsize=1)
def _numerical_libraries(n_modules: int) -> ThreadpoolController:
    """Return the libraries that have threads; looking for them takes milliseconds, so
    it is done only when modules were imported since.
    """
    return ThreadpoolController()


_lock = threading.RLock()
_depth = 0


@contextmanager
def teacher_surroundings() -> Iterator[None]:
    """No warning leaves, and none becomes an error; one thread; no workers.

    The last bits of a result depend on the number of threads, and workers that a
    learner starts would live on. Warning filters belong to the process, so one thread
    enters at a time.
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
                _numerical_libraries(len(sys.modules)).limit(limits=1),
                joblib.parallel_config("sequential"),
                _generators_restored(),
            ):
                warnings.simplefilter("ignore")
                yield
        finally:
            _depth -= 1
