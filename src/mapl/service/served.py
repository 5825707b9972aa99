"""What is served under a name: a panel, or a published model."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
from anyio import to_thread

from mapl.errors import ParameterError
from mapl.online.panel import Panel, Question
from mapl.publish.loading import load
from mapl.records.table import table_of_columns
from mapl.service.batching import Batcher, in_asking_thread
from mapl.service.tensors import datatype_of

_READY_SECONDS = 1.0
Output = dict[str, Any]  # an output tensor


class Served(Protocol):
    """Something that labels records."""

    name: str
    dataset: str | None  # whose budget it is; None for what is public
    columns: dict[str, str]  # the kind of each
    outputs: dict[str, tuple[str, list[int]]]  # datatype and shape of each
    platform: str

    def properties(self) -> dict[str, Any]:
        """Return what else may be known of it."""

    async def is_ready(self) -> bool:
        """Whether it answers."""

    async def infer(
        self, records: dict[str, Any], *, id: str | None, by: str
    ) -> tuple[str, dict[str, Output]]:
        """Return the id of a request, and its outputs by name."""


class ServedPanel:
    """A panel: labels are paid for, and some are withheld."""

    platform = "mapl_panel"
    outputs = {"label": ("BYTES", [-1]), "abstained": ("BOOL", [-1])}  # noqa: RUF012

    def __init__(self, folder: Path) -> None:
        self.panel = Panel.load(folder)
        self.name = _name_of(folder)
        self.dataset: str | None = self.panel.public["dataset"]
        self.columns: dict[str, str] = self.panel.public["columns"]
        self.panel.warm_up()
        self._batcher = Batcher(self.panel.ask_together)
        self._looked, self._ready = -math.inf, False

    def properties(self) -> dict[str, Any]:
        """Return the classes."""
        return {"classes": [str(label) for label in self.panel.public["classes"]]}

    async def is_ready(self) -> bool:
        """Whether it is open and has answers left, as it was a second ago."""
        now = time.monotonic()
        if now - self._looked > _READY_SECONDS:
            self._looked = now
            self._ready = await in_asking_thread(self._can_answer)
        return self._ready

    def _can_answer(self) -> bool:
        try:
            return self.panel.can_answer()
        except Exception:  # whatever it is, there are no answers
            return False

    async def infer(
        self, records: dict[str, Any], *, id: str | None, by: str
    ) -> tuple[str, dict[str, Output]]:
        """Ask the teachers."""
        name = secrets.token_hex(16) if id is None else id
        question = Question(table_of_columns(records, self.panel.schema), name, by)
        found = await self._batcher.ask(question)
        labels = ["" if label is None else str(label) for label in found.labels]
        return name, {
            "label": _tensor("label", "BYTES", labels),
            "abstained": _tensor("abstained", "BOOL", found.abstained),
        }


class ServedModel:
    """A published model: its answers are free."""

    platform = "mapl_published_model"

    def __init__(self, folder: Path) -> None:
        self.model = load(folder)
        self.name = _name_of(folder)
        self.dataset: str | None = None  # whoever has a token may ask it
        self.columns = self.model.column_kinds
        self._classes = [str(label) for label in self.model.classes_.tolist()]
        self.outputs = {"label": ("BYTES", [-1])}
        if self.model.has_probabilities:
            self.outputs["probability"] = ("FP64", [-1, len(self._classes)])

    def properties(self) -> dict[str, Any]:
        """Return the classes, and the guarantee."""
        certificate = self.model.certificate_
        return {"classes": self._classes} | {
            name: certificate[name] for name in ("epsilon", "delta", "guarantee")
        }

    async def is_ready(self) -> bool:
        """It always is."""
        return True

    async def infer(
        self, records: dict[str, Any], *, id: str | None, by: str
    ) -> tuple[str, dict[str, Output]]:
        """Ask the model."""
        name = secrets.token_hex(16) if id is None else id
        return name, await to_thread.run_sync(self._outputs, records)

    def _outputs(self, records: dict[str, Any]) -> dict[str, Output]:
        frame = pd.DataFrame(records)
        labels = [str(label) for label in self.model.predict(frame).tolist()]
        found = {"label": _tensor("label", "BYTES", labels)}
        if self.model.has_probabilities:
            shares = self.model.predict_proba(frame)
            found["probability"] = {
                "name": "probability",
                "shape": list(shares.shape),
                "datatype": "FP64",
                "data": np.ravel(shares).tolist(),
            }
        return found


def _tensor(name: str, datatype: str, values: Sequence[Any]) -> Output:
    shape = [len(values)]
    return {"name": name, "shape": shape, "datatype": datatype, "data": list(values)}


def _name_of(folder: Path) -> str:
    return folder.resolve().name


def serve_all(panels: Sequence[Path], models: Sequence[Path]) -> dict[str, Served]:
    """Return what is in the folders, by the names of the folders."""
    found: dict[str, Served] = {}
    every: list[Served] = [ServedPanel(folder) for folder in panels]
    every += [ServedModel(folder) for folder in models]
    if not every:
        raise ParameterError("Give something to serve: --panel DIR or --model DIR.")
    for one in every:
        if one.name in found:
            raise ParameterError(
                f"Two folders have the name {one.name!r}, under which they would be "
                "asked. Rename one."
            )
        found[one.name] = one
    return found


def metadata(served: Served) -> dict[str, Any]:
    """Return what the protocol says of a model."""
    return {
        "name": served.name,
        "versions": ["1"],
        "platform": served.platform,
        "inputs": [
            {"name": name, "datatype": datatype_of(kind), "shape": [-1]}
            for name, kind in served.columns.items()
        ],
        "outputs": [
            {"name": name, "datatype": datatype, "shape": shape}
            for name, (datatype, shape) in served.outputs.items()
        ],
        "properties": served.properties(),
    }
