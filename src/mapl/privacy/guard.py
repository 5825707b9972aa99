"""A running mechanism exists once: the guard that each of them holds."""

from __future__ import annotations

import os
import threading
from typing import NoReturn

from mapl.errors import MechanismStateError


class Guard:
    """Lets one thread of one process through, and refuses copies.

    A second thread would race for the budget; a copy, a pickle or a forked process
    would have a budget of its own.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._process = os.getpid()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if os.getpid() != self._process:
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
