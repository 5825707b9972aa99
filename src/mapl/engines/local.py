"""Processes of this machine, each with a new interpreter and a socket of its own.

A worker ends when its socket closes, so nothing is left behind when this process is
killed. One that dies is replaced, and its task is repeated.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle

from mapl.engines.engine import RETRIES, Work, WorkerLostError, without_chain
from mapl.interpreter import ONE_THREAD, SAFE_PATH, command


@dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    line: Connection
    task: int | None = None
    call: int = 0  # whose shared value it has

    def send(self, message: Any) -> None:
        with suppress(OSError):  # a worker that is gone is noticed when we listen
            self.line.send_bytes(cloudpickle.dumps(message))

    def end(self) -> None:
        self.line.close()
        self.process.kill()
        self.process.wait()


class LocalEngine:
    """Runs tasks in worker processes; with one worker, in this process.

    Parameters
    ----------
    n_workers : int
        How many tasks run at once.

    Examples
    --------
    >>> from mapl.engines.local import LocalEngine
    >>> engine = LocalEngine(1)
    >>> sorted(engine.map(lambda base, x: base + x, 10, [1, 2]))
    [(0, 11), (1, 12)]
    """

    def __init__(self, n_workers: int = 1) -> None:
        self.n_workers = n_workers
        self._workers: list[_Worker] = []
        self._calls = 0

    def map(
        self, work: Work[Any, Any], shared: Any, inputs: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        """Yield the number and the result of each task as it finishes."""
        if self.n_workers == 1:
            yield from ((i, work(shared, each)) for i, each in enumerate(inputs))
            return
        self._calls += 1
        common = cloudpickle.dumps((work, shared))
        left = deque(range(len(inputs)))
        try:
            yield from self._results(left, common, inputs)
        finally:  # who still works does so for nobody
            for worker in [w for w in self._workers if w.task is not None]:
                self._workers.remove(worker)
                worker.end()

    def _results(
        self, left: deque[int], common: bytes, inputs: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        lost = dict.fromkeys(left, 0)
        while left or any(worker.task is not None for worker in self._workers):
            self._give_out(left, common, inputs)
            for worker in self._ready():
                number = worker.task
                assert number is not None
                try:
                    failed, result = cloudpickle.loads(worker.line.recv_bytes())
                except (EOFError, OSError):
                    self._workers.remove(worker)
                    worker.end()
                    lost[number] += 1
                    left.appendleft(number)
                    if lost[number] > RETRIES:
                        raise WorkerLostError from None
                    continue
                worker.task = None
                if failed:
                    raise result
                yield number, result

    def _give_out(self, left: deque[int], common: bytes, inputs: Sequence[Any]) -> None:
        """Give a task to every worker that has none; start workers as needed."""
        while left and len(self._workers) < self.n_workers:
            self._workers.append(_start())
        for worker in self._workers:
            if left and worker.task is None:
                worker.task = left.popleft()
                known, worker.call = worker.call == self._calls, self._calls
                worker.send((None if known else common, inputs[worker.task]))

    def _ready(self) -> list[_Worker]:
        busy = {w.line: w for w in self._workers if w.task is not None}
        return [busy[line] for line in wait(list(busy)) if line in busy]

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


def _start() -> _Worker:
    """Start a worker with a new interpreter: it runs nothing of the caller's script."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(  # noqa: S603 - our own interpreter
        command(__name__, str(theirs.fileno())),
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | ONE_THREAD | SAFE_PATH,
    )
    theirs.close()
    return _Worker(process, Connection(ours.detach()))


def serve(descriptor: str) -> None:
    """Run tasks from a socket until it closes."""
    line, call = Connection(int(descriptor)), None
    with suppress(EOFError, OSError):
        while True:
            common, each = cloudpickle.loads(line.recv_bytes())
            if common is not None:
                call = cloudpickle.loads(common)
            work, shared = call  # type: ignore[misc]
            try:
                answer: Any = (False, work(shared, each))
            except Exception as error:
                answer = True, without_chain(error)
            line.send_bytes(cloudpickle.dumps(answer))
