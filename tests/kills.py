"""Fits that are killed with -9 at a chosen moment."""

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

from mapl.ledger.job import Job


def run_and_kill(fit: Callable[[], Any], name: str, step: int) -> int | None:
    """Run a fit in a forked process, and kill it when it calls a method of its job for
    a step; return the exit code.
    """

    def run() -> None:
        whole = getattr(Job, name)

        def killed(self: Any, number: int, *args: Any) -> Any:
            if number == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(self, number, *args)

        setattr(Job, name, killed)
        fit()

    child = get_context("fork").Process(target=run)
    child.start()
    child.join()
    return child.exitcode
