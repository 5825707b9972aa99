"""A feature map as a scikit-learn transformer, of plain values: what is published."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from mapl.arrays import Array, Singles, n_rows
from mapl.errors import CertificateError
from mapl.features.columns import CodeColumn, Columns, NumberColumn
from mapl.features.maps import FeatureMap
from mapl.features.projections import ManyNumbers, Projection, Words
from mapl.features.ranks import RankScore, Waves
from mapl.records.columns import KINDS
from mapl.records.schema import Column, Schema
from mapl.records.table import canonical_table

_ROWS = 2**13  # that are encoded at a time
_MOST_EDGES = 2**14
_MOST_WAVES = 2**12
_CONTAINERS = ("pandas", "polars", "series", "texts", "array", "sparse")


class PublicFeatures(TransformerMixin, BaseEstimator):
    """From records of any container to the integers of a `FeatureMap`.

    Everything in it comes from public points. ``plain`` holds it as numbers and texts,
    so that a file of it can be checked.
    """

    def __init__(self, plain: dict[str, Any]) -> None:
        self.plain = plain

    @classmethod
    def of(cls, feature_map: FeatureMap, schema: Schema) -> PublicFeatures:
        """Return the transformer of a map for tables of a schema."""
        return cls(to_plain(feature_map, schema))

    def fit(self, X: Any, y: Any = None) -> PublicFeatures:
        """Return self: all was fitted when it was made."""
        return self

    def transform(self, X: Any) -> Singles:
        """Return the integers of each record, a 1 in the last column."""
        feature_map, schema = from_plain(self.plain)
        table = canonical_table(X, schema)
        parts = [
            feature_map.cells(feature_map.encode(table.take(rows)))
            for rows in np.array_split(np.arange(n_rows(X)), 1 + n_rows(X) // _ROWS)
        ]
        return np.concatenate(parts)

    @property
    def column_names(self) -> list[str]:
        """The names of the columns that it needs."""
        return [str(name) for name, _, _ in self.plain["columns"]]

    @property
    def schema(self) -> Schema:
        """The types of the columns."""
        return from_plain(self.plain)[1]


def to_plain(feature_map: FeatureMap, schema: Schema) -> dict[str, Any]:
    """Return a map as numbers and texts."""
    columns, many = feature_map.columns, feature_map.projection
    return {
        "container": schema.container,
        "precision": schema.precision,
        "columns": [
            [name, column.kind, list(column.categories)]
            for name, column in schema.columns.items()
        ],
        "numbers": np.array(
            [[c.low, c.high, c.mean, c.scale] for c in columns.numbers]
        ),
        "edges": [c.edges for c in columns.numbers],
        "ranks": [[r.knots, r.scores] for r in feature_map.ranks],
        "codes": [list(c.values) for c in columns.codes],
        "free": list(columns.free),
        "many": None
        if many is None
        else [
            many.mean,
            many.scale,
            many.projection.directions,
            many.projection.divisor,
        ],
        "texts": [
            [w.vocabulary, w.rarity, p.directions, p.divisor]
            for w, p in feature_map.texts
        ],
        "waves": [[w.directions, w.phase] for w in feature_map.waves],
    }


def from_plain(plain: dict[str, Any]) -> tuple[FeatureMap, Schema]:
    """Return the map and the schema; refuse values that do not fit together.

    Raises
    ------
    CertificateError
        If a table has another shape, or holds something else than numbers.
    """
    try:
        schema = Schema(
            {
                name: Column(_known(kind, KINDS), categories=tuple(map(str, listed)))
                for name, kind, listed in plain["columns"]
            },
            _known(plain["container"], _CONTAINERS),
            _known(plain["precision"], ("float32", "float64")),
        )
        columns = Columns(
            [
                _number_column(places, edges)
                for places, edges in zip(plain["numbers"], plain["edges"], strict=True)
            ],
            [CodeColumn(tuple(map(str, values))) for values in plain["codes"]],
            [bool(free) for free in plain["free"]],
        )
        found = FeatureMap(
            columns,
            _many(plain["many"], len(schema.columns)),
            [_texts(*parts) for parts in plain["texts"]],
            [_rank(*parts) for parts in plain["ranks"]],
            [],
        )
        _require(len(found.ranks) in (len(columns.numbers), 0))
        found.waves = [_waves(found, *parts) for parts in plain["waves"]]
    except CertificateError:
        raise
    except Exception as error:  # it may come from a stranger
        raise CertificateError(
            f"The features of the model cannot be read ({type(error).__name__})."
        ) from None
    return found, schema


def _many(parts: Any, width: int) -> ManyNumbers | None:
    if parts is None:
        return None
    mean, scale, directions, divisor = parts
    n = len(_numbers(mean))
    _require(n <= width)
    projection = Projection(_matrix(directions, n), float(divisor))
    return ManyNumbers(_vector(mean, n), _vector(scale, n), projection)


def _number_column(places: Any, edges: Any) -> NumberColumn:
    low, high, mean, scale = _vector(places, 4).tolist()
    return NumberColumn(low, high, mean, scale, _edges(edges))


def _rank(knots: Any, scores: Any) -> RankScore:
    found = _edges(knots)
    _require(len(found) > 0)
    return RankScore(found, _vector(scores, len(found)))


def _waves(feature_map: FeatureMap, directions: Any, phase: Any) -> Waves:
    n = len(_numbers(phase))
    _require(n <= _MOST_WAVES)
    matrix = _matrix(directions, feature_map.n_coordinates, n)
    return Waves(matrix, _numbers(phase), feature_map.farthest)


def _texts(
    vocabulary: Any, rarity: Any, directions: Any, divisor: Any
) -> tuple[Words, Projection]:
    words = [str(word) for word in vocabulary]
    n = len(words)
    projection = Projection(_matrix(directions, max(n, 1)), float(divisor))
    return Words(words, _vector(rarity, n)), projection


def _edges(values: Any) -> Array:
    found = _numbers(values)
    _require(len(found) <= _MOST_EDGES and bool((np.diff(found) > 0).all()))
    return found


def _vector(values: Any, n: int) -> Array:
    found = _numbers(values)
    _require(found.shape == (n,))
    return found


def _matrix(values: Any, height: int, width: int | None = None) -> Array:
    found = np.asarray(values, dtype=np.float64)
    _require(found.ndim == 2 and len(found) == height and np.isfinite(found).all())
    _require(width is None or found.shape[1] == width)
    return found


def _numbers(values: Any) -> Array:
    found = np.asarray(values, dtype=np.float64)
    _require(found.ndim == 1 and bool(np.isfinite(found).all()))
    return found


def _known(value: Any, choices: Any) -> str:
    _require(value in choices)
    return str(value)


def _require(holds: Any) -> None:
    if not holds:
        raise CertificateError("The tables of the model do not fit. Nothing was used.")
