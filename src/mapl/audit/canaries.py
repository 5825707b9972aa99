"""Records whose presence an audit tries to notice, made from the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from mapl.errors import ParameterError

_FAR = 1e6  # times the largest value of a column


def mislabelled(X: Any, y: Any, classes: Any, rng: Any) -> tuple[Any, Any]:
    """Return one of the records with another label."""
    row = int(rng.integers(len(X)))
    others = [label for label in classes if label != y[row]]
    return X.iloc[[row]], others[int(rng.integers(len(others)))]


def duplicate(X: Any, y: Any, classes: Any, rng: Any) -> tuple[Any, Any]:
    """Return one of the records once more."""
    row = int(rng.integers(len(X)))
    return X.iloc[[row]], y[row]


def outlier(X: Any, y: Any, classes: Any, rng: Any) -> tuple[Any, Any]:
    """Return a record far outside of all columns of numbers, of the rarest class."""
    cells = {
        name: _FAR * (1 + _largest(column)) if _is_number(column) else _rarest(column)
        for name, column in X.items()
    }
    return _frame(cells), _rarest_of(y, classes)


def memorable(X: Any, y: Any, classes: Any, rng: Any) -> tuple[Any, Any]:
    """Return a record of the rarest cells, within what columns hold, and the rarest
    class: one that a learner must remember to get right.
    """
    cells = {
        name: _end(column, last=bool(i % 2)) if _is_number(column) else _rarest(column)
        for i, (name, column) in enumerate(X.items())
    }
    return _frame(cells), _rarest_of(y, classes)


CANARIES: dict[str, Callable[[Any, Any, Any, Any], tuple[Any, Any]]] = {
    "mislabelled": mislabelled,
    "duplicate": duplicate,
    "outlier": outlier,
    "memorable": memorable,
}


def as_frame(X: Any) -> Any:
    """Return records as a data frame; arrays stay without names."""
    if isinstance(X, pd.DataFrame):
        return X
    if not isinstance(X, np.ndarray) or X.ndim != 2:
        raise ParameterError(
            "An audit takes records as a DataFrame or an array with two dimensions."
        )
    return pd.DataFrame(X)


def as_given(frame: Any, X: Any) -> Any:
    """Return a frame in the form of X."""
    return frame if isinstance(X, pd.DataFrame) else frame.to_numpy()


def with_canary(X: Any, canary: Any) -> Any:
    """Return the records with the canary in front of them: whatever goes by position
    moves all others.
    """
    if not isinstance(X, pd.DataFrame):
        return np.concatenate([canary, X])
    front, rest = canary.astype(object), X.astype(object)
    return pd.concat([front, rest], ignore_index=True).infer_objects()


def _frame(cells: dict[Any, Any]) -> Any:
    return pd.DataFrame({name: [cell] for name, cell in cells.items()})


def _is_number(column: Any) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column)) and column.dtype != bool


def _largest(column: Any) -> float:
    """Return the largest size of a finite value."""
    values = np.abs(column.to_numpy(dtype=float, na_value=np.nan))
    return float(values[np.isfinite(values)].max(initial=0.0))


def _end(column: Any, *, last: bool) -> Any:
    """Return the largest value of a column, or the smallest."""
    return column.max() if last else column.min()


def _rarest(column: Any) -> Any:
    counts = column.value_counts()
    counts = counts[counts > 0]
    return counts.index[-1] if len(counts) else None


def _rarest_of(y: Any, classes: Any) -> Any:
    """Return the class with fewest records; one without any, if there is one."""
    frequent = pd.Series(list(y)).value_counts()
    return min(classes, key=lambda label: frequent.get(label, 0))
