"""Passes over records that are read in parts: a task a part, integers back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mapl.arrays import Ints
from mapl.features.contributions import Contributions
from mapl.features.grids import Grid
from mapl.features.passes import Pass
from mapl.privacy.moments import MOST_RECORDS_EACH
from mapl.records.private import PrivateRecords
from mapl.scale.records import Reading, StreamedRecords, batches_of


def contributions(
    private: PrivateRecords | StreamedRecords,
    grids: list[Grid | None] | None = None,
    *,
    n_threads: int = 1,
    labels_only: bool = False,
) -> Any:
    """Return the records as what they contribute, in memory or in parts.

    Where labels alone are private, each record of a person counts.
    """
    form = ContributionForm(None, grids, None if labels_only else MOST_RECORDS_EACH)
    if isinstance(private, StreamedRecords):
        return StreamedContributions(private, form)
    return form.of(private, n_threads=n_threads, keeps=True)


@dataclass(frozen=True)
class ContributionForm:
    """How records become contributions: cells of columns, and features. Public."""

    feature_map: Any
    grids: list[Grid | None] | None
    most_each: int | None

    def of(
        self, private: PrivateRecords, *, n_threads: int = 1, keeps: bool = False
    ) -> Contributions:
        """Return some records as what they contribute; keys order those of a unit."""
        return Contributions(
            private.table,
            np.where(private.usable, private.codes, -1),
            self.feature_map,
            units=private.units,
            keys=None if private.units is None else private.keys,
            grids=self.grids,
            most_each=self.most_each,
            n_threads=n_threads,
            keeps=keeps,
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

    def show(self, feature_map: Any) -> None:
        """Take the features that records are added up in."""
        self._form = replace(self._form, feature_map=feature_map)

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
