"""Where a fit's points come from: public records, or made-up ones.

Made-up records are drawn from what is published of the private ones: how often each
cell of each column occurs, and how columns go together. From then on both are treated
alike: features, metric, bounds and curvature come from them, teachers are asked about
them, and they are published. Proofs: docs/proofs/Sketch.md, docs/proofs/Copula.md
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mapl.arrays import Array
from mapl.errors import ParameterError
from mapl.features.columns import BINS
from mapl.features.components import GRID
from mapl.features.copula import Copula
from mapl.features.grids import Grid, cells_of, grid_of
from mapl.features.maps import FeatureMap
from mapl.features.sketch import N_DRAWN, Sketch, drawn_table
from mapl.records.dictionary import Dictionary
from mapl.records.table import Table
from mapl.student.steps import Points

_MOST_POINTS = 12_000  # that curvature and metric are computed from
_ROWS = 2**12  # that are encoded at a time
FEW_PUBLIC = 1000  # public records: fewer do not show how columns go together
N_REHEARSED = 400  # made-up records that a learner is tried on
NOTHING_PUBLIC = (
    "X_public must be given: records without labels that are not sensitive. Without "
    "any, describe the columns: schema='schema.json' (mapl schema draft). If only the "
    "labels are private, use privacy='labels'."
)


@dataclass(frozen=True)
class PublicMap:
    """A feature map, and the points of the pool as it shows them. Public."""

    feature_map: FeatureMap
    points: Points
    table: Table  # of the points that were used
    dense_cells: Array  # what trees see of them
    whole: Table  # all points that the map was fitted to
    options: dict[str, Any]  # what it was fitted with

    @classmethod
    def of(
        cls, table: Table, *, seed: int, n_bins: int = BINS, made_up: bool = False
    ) -> PublicMap:
        """Fit a map to a pool; to some points of a very large one."""
        rows = np.arange(len(table))
        if len(rows) > _MOST_POINTS:
            rng = np.random.default_rng(seed)
            rows = np.sort(rng.choice(rows, _MOST_POINTS, replace=False))
            table = table.take(rows)
        options: dict[str, Any] = {"seed": seed, "n_bins": n_bins, "made_up": made_up}
        feature_map, kept = FeatureMap.of(table, **options)
        used = table if len(kept) == len(table) else table.take(kept)
        return cls._shown(feature_map, used, table, options)

    def with_bins(self, n_bins: int) -> PublicMap:
        """Return the map with so many bins in a column of numbers."""
        if n_bins == self.options["n_bins"]:
            return self
        return PublicMap.of(self.whole, **self.options | {"n_bins": n_bins})

    def shown_at(self, table: Table) -> PublicMap:
        """Return the map with other points."""
        return self._shown(self.feature_map, table, self.whole, self.options)

    @classmethod
    def _shown(
        cls,
        feature_map: FeatureMap,
        table: Table,
        whole: Table,
        options: dict[str, Any],
    ) -> PublicMap:
        images, dense = [], []
        for rows in np.array_split(np.arange(len(table)), 1 + len(table) // _ROWS):
            encoded = feature_map.encode(table.take(rows))
            cells = feature_map.whole(feature_map.components(encoded))
            images.append((cells / GRID).astype(np.float32))
            dense.append(feature_map.dense(encoded))
        points = Points(
            np.concatenate(images), feature_map.pieces, feature_map.n_additive, GRID
        )
        shown = np.concatenate(dense)
        return cls(feature_map, points, table, shown, whole, options)

    def leading(self, least: float) -> PublicMap:
        """Return the map with those components alone that say enough."""
        reduced = self.feature_map.leading(least)
        kept = self.feature_map.kept(least)
        image = np.ascontiguousarray(self.points.image[:, np.append(kept, True)])
        points = Points(image, reduced.pieces, reduced.n_additive, GRID)
        return replace(self, feature_map=reduced, points=points)

    @classmethod
    def or_error(cls, table: Table, *, seed: int) -> PublicMap:
        """Return `of`, or an error that says what else to do."""
        try:
            return cls.of(table, seed=seed)
        except Exception as error:  # nothing here is private
            raise ParameterError(
                f"X_public cannot be turned into features: {error} Use method='votes' "
                "and an estimator that reads it. Nothing was released."
            ) from error


@dataclass(frozen=True)
class Outline:
    """What is known before anything is published: the cells of each column. Public.

    ``public`` are a few public records that refine what is counted, if there are any.
    """

    dictionary: Dictionary
    grids: list[Grid | None]
    public: Table | None = None

    @classmethod
    def of(cls, dictionary: Dictionary, public: Table | None = None) -> Outline:
        """Take the cells from a dictionary that has all ranges."""
        dictionary.require_ranges()
        grids = [grid_of(entry) for entry in dictionary.columns.values()]
        return cls(dictionary, grids, public)

    @property
    def used(self) -> list[Grid]:
        """The cells of the columns that are learned from: all but free text."""
        return [grid for grid in self.grids if grid is not None]

    def points(self, n: int) -> Table:
        """Return made-up records that follow the dictionary alone, without gaps."""
        rng = np.random.default_rng(0)
        cells = [rng.integers(0, grid.n_cells - 1, n) for grid in self.used]
        return self._table(np.stack(cells, axis=1), rng)

    def drawn(
        self, copula: Copula, rng: np.random.Generator, n: int = N_DRAWN, **kwargs: bool
    ) -> Table:
        """Return records drawn from what was published."""
        return self._table(copula.draw(n, rng, **kwargs), rng)

    def _table(self, cells: Array, rng: np.random.Generator) -> Table:
        return drawn_table(self.dictionary.schema, self.grids, cells, rng)

    def to_json(self) -> list[Any]:
        """Return what identifies it: all that decides what is asked for."""
        own = None if self.public is None else self.public.digest().hex()
        return [self.dictionary.cells_json(), own]

    def refined(self, sketch: Sketch) -> Sketch:
        """Add the cells of public records to what was counted."""
        if self.public is None or not len(self.public):
            return sketch
        cells, n = cells_of(self.public, self.grids), sketch.n_units
        shares = [
            (share * n + np.bincount(own, minlength=len(share))) / (n + len(cells))
            for share, own in zip(sketch.shares, cells.T, strict=True)
        ]
        return replace(sketch, shares=shares)


def outline_for(
    dictionary: Dictionary | None, public: Table | None, model: Any
) -> Outline:
    """Return the outline of a fit; refuse what needs public records."""
    assert dictionary is not None
    if model.method_ == "votes" or model.privacy == "labels":
        raise ParameterError(
            "A schema instead of public records goes with method 'moments' or 'both' "
            "and privacy='records'. Give at least 1000 records as X_public."
        )
    return Outline.of(dictionary, public)
