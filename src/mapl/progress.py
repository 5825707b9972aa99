"""A progress bar on the terminal, for what takes longer than two seconds."""

from __future__ import annotations

import sys
import time
from typing import Any

QUIET_SECONDS = 2.0  # nothing is shown before


class Progress:
    """Shows how much of some work is done, once it takes long and someone looks."""

    def __init__(self, doing: str, total: int) -> None:
        self.doing, self.total, self.done = doing, total, 0
        self.start = time.monotonic()
        self.bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def advance(self, n: int) -> None:
        """Tell that n more are done."""
        self.done += n
        late = time.monotonic() - self.start > QUIET_SECONDS
        if self.bar is None and late and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as Bar

            self.bar = Bar(console=Console(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task(self.doing, total=self.total)
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done)

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()
