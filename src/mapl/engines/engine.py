"""One small interface: a function, what all its calls share, and a list of inputs.

A task is a pure function of its input, so it may be repeated, lost and repeated again.
Nothing else in mapl knows where tasks run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from mapl.errors import MaplError, ParameterError

RETRIES = 5  # of a task whose worker died

_Input = TypeVar("_Input")
_Result = TypeVar("_Result")
Work = Callable[[Any, _Input], _Result]


@runtime_checkable
class Engine(Protocol):
    """Runs tasks on several workers."""

    n_workers: int

    def map(
        self, work: Work[_Input, _Result], shared: Any, inputs: Sequence[_Input]
    ) -> Iterator[tuple[int, _Result]]:
        """Yield the number and the result of each task as it finishes.

        ``work(shared, input)`` runs anywhere, at least once for each input. What it
        raises is raised here.
        """

    def close(self) -> None:
        """End all workers."""


class WorkerLostError(MaplError):
    """Workers died on the same task again and again."""

    def __init__(self) -> None:
        super().__init__(
            f"A worker died {RETRIES + 1} times on the same task, perhaps for lack of "
            "memory. Nothing of this step was released. Use a smaller memory limit, "
            "or fewer workers, and rerun; committed charges are reused."
        )


def without_chain(error: Exception) -> Exception:
    """Return an error that another process can read, without the chain behind it."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def make_engine(engine: Any, *, n_workers: int, address: str | None = None) -> Engine:
    """Return an engine by its name; one that is given is taken as it is."""
    if engine is None or engine == "local":
        from mapl.engines.local import LocalEngine

        return LocalEngine(n_workers)
    if engine == "ray":
        from mapl.engines.on_ray import RayEngine

        return RayEngine(address=address, n_workers=n_workers)
    if isinstance(engine, Engine):
        return engine
    raise ParameterError(f"engine must be 'local', 'ray' or an Engine, got {engine!r}.")
