"""A progress bar on the terminal, for what takes longer than two seconds."""

from __future__ import annotations

import sys
import time
from typing import Any, ClassVar

QUIET_SECONDS = 2.0  # nothing is shown before


class Progress:
    """Shows how much of some work is done, once it takes long and someone looks.

    Work inside other work has a line below it.
    """

    _shown: ClassVar[Any] = None  # the bars on the terminal: there is one such place

    def __init__(self, doing: str, total: int) -> None:
        self.doing, self.total, self.done, self.rows = doing, total, 0, 0
        self.start = time.monotonic()
        self.bar: Any = None
        self._owner = False

    def __enter__(self) -> Progress:
        return self

    def advance(self, n: int, *, rows: int = 0) -> None:
        """Tell that n more are done, and how many records they had."""
        self.done, self.rows = self.done + n, self.rows + rows
        taken = time.monotonic() - self.start
        if self.bar is None and taken > QUIET_SECONDS and sys.stderr.isatty():
            self._show()
        if self.bar is not None:
            speed = f" ({self.rows / taken:,.0f} records a second)" if self.rows else ""
            doing = self.doing + speed
            self.bar.update(self.task, completed=self.done, description=doing)

    def _show(self) -> None:
        if Progress._shown is None:
            from rich.console import Console
            from rich.progress import Progress as Bar

            Progress._shown, self._owner = (
                Bar(console=Console(stderr=True), transient=True),
                True,
            )
            Progress._shown.start()
        self.bar = Progress._shown
        self.task = self.bar.add_task(self.doing, total=self.total)

    def __exit__(self, *error: object) -> None:
        if self.bar is None:
            return
        self.bar.remove_task(self.task)
        if self._owner:
            self.bar.stop()
            Progress._shown = None
