"""Running many small tasks: here, in threads or in processes, always in silence."""

import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import joblib
import numpy as np
from threadpoolctl import threadpool_limits

from mapl.progress import Progress

_TASK_SECONDS = 1.0  # work handed to a worker at a time
_TRIAL_SECONDS = 0.1  # before deciding where the rest runs
_SMALL_SECONDS = 0.5  # of work that is not worth a thread
_PROCESS_SECONDS = 4.0  # of work that is not worth starting a process


@contextmanager
def no_warnings() -> Iterator[None]:
    """No warning leaves, and none becomes an error.

    Warning filters belong to the process: only one thread may enter this.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def no_warnings_one_thread() -> Iterator[None]:
    """Silent, and with one thread of the numerical libraries: the last bits of a result
    depend on the number of threads.
    """
    with no_warnings(), threadpool_limits(1):
        yield


def run_tasks(
    make_task: Callable[[int], Callable[[], Any]],
    n: int,
    progress: Progress,
    *,
    n_jobs: int | None,
    threads: bool = False,
) -> Iterator[Any]:
    """Yield the results of n tasks in order; from other workers where that pays.

    The first tasks run here and are timed. If the rest is quick, it runs here too;
    else it is handed to workers in groups of about a second, smaller towards the end,
    so that all workers finish at about the same time. Where a task runs does not
    change its result. A generator: the caller, too, is silenced until it ends.
    """
    if n == 0:  # `no_warnings_one_thread` takes milliseconds
        return
    n_workers = joblib.effective_n_jobs(n_jobs)
    worth = _SMALL_SECONDS if threads else _PROCESS_SECONDS
    worth = math.inf if n_workers == 1 else worth
    with no_warnings_one_thread():
        done, spent = 0, 0.0
        while True:
            start = time.perf_counter()
            result = make_task(done)()
            spent += time.perf_counter() - start
            done += 1
            progress.advance(1)
            yield result
            if done == n:
                return
            if spent >= _TRIAL_SECONDS and spent / done * (n - done) > worth:
                break
        size = max(1, int(_TASK_SECONDS * done / spent))
        groups = _groups(done, n, size, 4 * n_workers)
        workers = joblib.Parallel(
            n_jobs=n_jobs,
            prefer="threads" if threads else None,
            return_as="generator",
            pre_dispatch="2*n_jobs",
        )
        here = os.getpid()
        tasks = (
            joblib.delayed(_run_group)([make_task(j) for j in group], here)
            for group in groups
        )
        for results in workers(tasks):
            yield from results
            progress.advance(len(results))


def _groups(start: int, stop: int, size: int, parts: int) -> Iterator[range]:
    """Cut a range into pieces: of the size, and at most 1/parts of what is left."""
    while start < stop:
        group = range(start, start + min(size, -(-(stop - start) // parts)))
        yield group
        start = group.stop


def _run_group(tasks: Iterable[Callable[[], Any]], parent: int) -> list[Any]:
    """Run tasks in a worker, with no more noise than in this process."""
    # A thread is silenced with its process, except for numpy's error state.
    silence = (
        np.errstate(all="ignore") if os.getpid() == parent else no_warnings_one_thread()
    )
    with silence:
        return [task() for task in tasks]
