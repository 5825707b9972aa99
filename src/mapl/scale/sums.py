"""Passes over records that are read in parts: a task a part, integers back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mapl.arrays import Ints
from mapl.features.cell_records import CellContributions
from mapl.features.contributions import Contributions
from mapl.features.grids import Grid
from mapl.features.passes import Pass
from mapl.privacy.moments import MOST_RECORDS_EACH
from mapl.records.private import PrivateRecords
from mapl.scale.records import Reading, StreamedRecords, batches_of


@dataclass(frozen=True)
class ContributionForm:
    """How records become contributions: by public features, or cell by cell. Public."""

    feature_map: Any = None
    grids: list[Grid | None] | None = None

    def of(self, private: PrivateRecords, n_threads: int = 1) -> Contributions:
        """Return a batch of records as what they contribute."""
        labels = np.where(private.usable, private.codes, -1)
        units: dict[str, Any] = {
            "units": private.units,
            "keys": None if private.units is None else private.keys,
            "n_threads": n_threads,
            "keeps": False,
        }
        if self.grids is not None:
            found = CellContributions(private.table, labels, self.grids, **units)
            found.feature_map = self.feature_map
            return found
        return Contributions(
            private.table,
            labels,
            self.feature_map,
            most_each=MOST_RECORDS_EACH,
            **units,
        )


class StreamedContributions:
    """The records of a fit, ready to be asked for sums, one pass each. Private."""

    def __init__(self, records: StreamedRecords, form: ContributionForm) -> None:
        self._records, self._form = records, form
        self.grouped = records.grouped

    @property
    def feature_map(self) -> Any:
        """The features that records are added up in. Public."""
        return self._form.feature_map

    @feature_map.setter
    def feature_map(self, feature_map: Any) -> None:
        self._form = replace(self._form, feature_map=feature_map)

    def show(self, cell_map: Any) -> None:
        """Take what cells mean."""
        self.feature_map = cell_map

    def total(self, asked: Pass) -> Ints:
        """Return the total of a pass over all records."""
        shared = self._records.reading, self._form, asked
        parts = self._records.run("Reading the records", _total, shared, kept=True)
        total = None
        for _, (_, part) in parts:
            total = part if total is None else total + part
        assert total is not None  # a source has at least one part
        return np.asarray(total)

    def __repr__(self) -> str:
        return "StreamedContributions()"


def _total(shared: tuple[Reading, ContributionForm, Pass], part: Any) -> Any:
    """Return how many records a part has, and the total of a pass over them."""
    reading, form, asked = shared
    total, n = None, 0
    with np.errstate(all="ignore"):  # no warning tells of a private value
        for records in batches_of(reading, part):
            found = asked.total(form.of(records))
            total, n = found if total is None else total + found, n + len(records.codes)
    return n, total
