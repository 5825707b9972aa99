"""Tasks on a Ray cluster: one that runs, or one that is started on this machine.

Only Ray's tasks are used. Records, sums and votes that travel between machines are
private: use Ray's TLS (docs/scale.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import cloudpickle

from mapl.engines.engine import RETRIES, Work, WorkerLostError, without_chain
from mapl.errors import ParameterError
from mapl.interpreter import SAFE_PATH


class RayEngine:
    """Runs tasks on Ray.

    Parameters
    ----------
    address : str or None
        Of a running cluster ("auto", "host:6379", "ray://host:10001"). If None, a
        cluster of this machine's processors is started, and ended by `close`.
    n_workers : int
        How many processors a cluster of our own has.
    """

    def __init__(self, *, address: str | None = None, n_workers: int = 1) -> None:
        try:
            import ray
        except ImportError:
            raise ParameterError(
                "engine 'ray' needs Ray: pip install 'mapl[ray]'."
            ) from None
        self._ray: Any = ray
        self._own = not ray.is_initialized()
        if self._own:
            options: dict[str, Any] = {"address": address}
            if address is None:
                os.environ |= SAFE_PATH  # of its workers
                options = {"num_cpus": n_workers, "include_dashboard": False}
            try:
                ray.init(log_to_driver=False, configure_logging=False, **options)
            except Exception as error:
                raise ParameterError(
                    f"No Ray cluster can be reached or started ({error})."
                ) from None
        self.n_workers = max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def map(
        self, work: Work[Any, Any], shared: Any, inputs: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        """Yield the number and the result of each task as it finishes."""
        ray = self._ray
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(_run)
        common = ray.put(cloudpickle.dumps((work, shared)))
        waiting: dict[Any, int] = {}
        at = 0
        while waiting or at < len(inputs):
            while at < len(inputs) and len(waiting) < 2 * self.n_workers:
                waiting[task.remote(common, inputs[at])] = at
                at += 1
            done, _ = ray.wait(list(waiting), num_returns=1)
            number = waiting.pop(done[0])
            try:
                failed, result = ray.get(done[0])
            except ray.exceptions.WorkerCrashedError:
                raise WorkerLostError from None
            except ray.exceptions.RayTaskError:
                raise ParameterError(
                    "A machine of the Ray cluster cannot load what it should run: "
                    "install the same versions of mapl and of the estimator there."
                ) from None
            if failed:
                raise result
            yield number, result

    def close(self) -> None:
        """End a cluster of our own, or leave one that was there."""
        if self._own:
            self._ray.shutdown()
            self._own = False


def _run(common: bytes, each: Any) -> tuple[bool, Any]:
    """Run one task; what it raises is a result, so that Ray does not print it."""
    work, shared = cloudpickle.loads(common)
    try:
        return False, work(shared, each)
    except Exception as error:
        return True, without_chain(error)
