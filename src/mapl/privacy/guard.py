"""What running mechanisms share: one copy of each, and no more than was paid for."""

import os
import threading
from typing import NoReturn

from mapl.errors import (
    BudgetExceededError,
    MechanismStateError,
    ParameterError,
)
from mapl.privacy.noise import Source
from mapl.privacy.votes import Votes

_forks = 0  # of this process: its number may be used again in a container


def _count_fork() -> None:  # pragma: no cover - in the child
    global _forks
    _forks += 1


# Windows has no fork.
getattr(os, "register_at_fork", lambda **_: None)(after_in_child=_count_fork)


class Guard:
    """Lets one thread of one process through, and refuses copies.

    A second thread would race for the budget; a copy, a pickle or a forked process
    would have a budget of its own.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._process = os.getpid(), _forks
        self._lock = threading.Lock()

    @property
    def is_own(self) -> bool:
        """Whether this is the process that made it."""
        return (os.getpid(), _forks) == self._process

    def __enter__(self) -> None:
        if not self.is_own:
            raise MechanismStateError(
                f"This {self.name} was opened in another process: used here too, its "
                "budget would be spent twice. Nothing was released."
            )
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def refuse_copy(self) -> NoReturn:
        """Say why there is no copy, and what to do instead."""
        raise MechanismStateError(
            f"A running {self.name} cannot be copied or pickled: its budget would be "
            "spent twice. What it costs is its event; open another one to ask for more."
        )


def check_classes(votes: Votes, n_classes: int) -> None:
    """Refuse votes over another number of classes."""
    if votes.n_classes != n_classes:
        raise ParameterError(
            f"votes must have n_classes = {n_classes}, got {votes.n_classes}."
        )


def check_queries_left(votes: Votes, left: int) -> None:
    """Refuse more queries than were paid for."""
    if votes.n_queries > left:
        raise BudgetExceededError(
            f"{votes.n_queries} queries were asked, {left} are left of what was paid "
            "for. Nothing was released."
        )


def seeded_suffix(source: Source) -> str:
    """Return what the repr of a mechanism with a seeded source ends in."""
    return "" if source.private else ", NOT PRIVATE: seeded noise"
