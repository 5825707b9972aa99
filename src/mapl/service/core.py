"""What all routes share: what is served, who calls, and how a question is answered."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from mapl.errors import MaplError
from mapl.service.callers import Caller, Door
from mapl.service.metrics import Metrics
from mapl.service.served import Served, ServedPanel
from mapl.service.tensors import InferenceRequest, records_of, wanted_outputs

_GRID_SECONDS = 0.005  # a panel's answers leave at multiples of it


@dataclass(frozen=True)
class Limits:
    """What a request may be."""

    most_bytes: int = 10_000_000
    most_rows: int = 10_000
    rate: float = 1_000  # requests a second, for each caller
    body_seconds: float = 20


class UnknownModelError(MaplError):
    """Nothing is served under a name."""


class Service:
    """What is served, and to whom."""

    def __init__(
        self, served: Mapping[str, Served], *, door: Door, limits: Limits
    ) -> None:
        self.served, self.door, self.limits = served, door, limits
        self.metrics = Metrics()

    def find(self, name: str, caller: Caller) -> Served:
        """Return what is served under a name, to who may see it; others do not learn
        that it exists.
        """
        found = self.served.get(name)
        if found is None or not caller.may_see(found.dataset):
            raise UnknownModelError(
                f"Nothing is served as {name!r:.60} to whoever has this token."
            )
        return found

    def visible_to(self, caller: Caller) -> list[Served]:
        """Return what somebody may see."""
        return [one for one in self.served.values() if caller.may_see(one.dataset)]

    async def infer(
        self, request: Request, name: str, asked: InferenceRequest, caller: Caller
    ) -> dict[str, Any]:
        """Return the answer to a request."""
        start, served = time.perf_counter(), self.find(name, caller)
        wanted = wanted_outputs(asked, list(served.outputs))
        records = records_of(asked, served.columns, most_rows=self.limits.most_rows)
        try:
            id, outputs = await served.infer(records, id=asked.id, by=caller.name)
        finally:
            if isinstance(served, ServedPanel):
                await _wait_for_grid(start)
        n = len(outputs["label"]["data"])
        abstained = outputs.get("abstained", {"data": []})["data"]
        self.metrics.count_labels(name, n, sum(abstained))
        request.scope["mapl"] |= {"model": name, "queries": n}
        return {
            "model_name": name,
            "model_version": "1",
            "id": id,
            "outputs": [outputs[one] for one in wanted],
        }


async def _wait_for_grid(start: float) -> None:
    """Wait until a multiple of some milliseconds has passed since the start: how long
    an answer took to make shows less.
    """
    passed = time.perf_counter() - start
    await asyncio.sleep(math.ceil(passed / _GRID_SECONDS) * _GRID_SECONDS - passed)


async def _service_of(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


async def _caller_of(request: Request) -> Caller:
    service: Service = request.app.state.service
    caller = service.door.caller(request)
    request.scope["mapl"]["by"] = caller.name  # for the log
    return caller


TheService = Annotated[Service, Depends(_service_of)]
TheCaller = Annotated[Caller, Depends(_caller_of)]
