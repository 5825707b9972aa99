"""Requests that arrive at the same time are asked together: teachers vote once, and the
ledger is written once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from mapl.errors import LedgerError, MaplError
from mapl.online.panel import Answers, Question

_MOST_QUERIES = 2_000  # asked together; more would let the first wait for long
_MOST_WAITING = 1_000  # requests; beyond, clients are sent away

# One thread for all panels: what surrounds teachers belongs to the process.
_ASKING = ThreadPoolExecutor(1, thread_name_prefix="mapl-asking")

Outcome = Answers | Exception


_T = TypeVar("_T")


async def in_asking_thread(work: Callable[[], _T]) -> _T:
    """Do something with a panel or its ledger, when no question is being asked."""
    return await asyncio.get_running_loop().run_in_executor(_ASKING, work)


class BusyError(MaplError):
    """More requests wait than can be answered soon."""


class Batcher:
    """Passes questions on, as many at a time as have come in."""

    def __init__(
        self, answer: Callable[[list[Question]], list[Answers | MaplError]]
    ) -> None:
        self._answer = answer
        self._waiting: deque[tuple[Question, asyncio.Future[Answers]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def ask(self, question: Question) -> Answers:
        """Return the answer to a question when its turn has come."""
        if len(self._waiting) >= _MOST_WAITING:
            raise BusyError("Too many requests are waiting. Try again later.")
        future: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        while self._waiting:
            batch = self._next_batch()
            questions = [question for question, _ in batch]
            outcomes = await in_asking_thread(partial(self._outcomes, questions))
            for (_, future), outcome in zip(batch, outcomes, strict=True):
                if future.done():  # the client has gone
                    continue
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)

    def _next_batch(self) -> list[tuple[Question, asyncio.Future[Answers]]]:
        batch = [self._waiting.popleft()]
        n = len(batch[0][0].records)
        while self._waiting:
            n += len(self._waiting[0][0].records)
            if n > _MOST_QUERIES:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _outcomes(self, questions: list[Question]) -> list[Outcome]:
        """Ask them together; one that fails by itself does not spoil the others."""
        try:
            return list(self._answer(questions))
        except Exception as error:
            if len(questions) == 1 or isinstance(error, LedgerError):
                return [error] * len(questions)
        return [self._outcomes([question])[0] for question in questions]
