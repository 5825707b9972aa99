"""Records as scikit-learn checks them, without a value in a message."""

from typing import Any

import numpy as np

from mapl.arrays import n_rows
from mapl.errors import ParameterError
from mapl.records.containers import unwrapped

# What scikit-learn says of the form of an array; other messages may show values.
_SAFE_MESSAGES = (
    "Found array with dim",
    "contains NaN",
    "contains infinity",
    "features, but",
    "feature names",
    "feature(s) (shape=",
    "sample(s) (shape=",
    "Sparse data was passed",
    "dtype='numeric' is not compatible",
)


def validate_records(owner: Any, X: Any, *, reset: bool, private: bool = False) -> Any:
    """Check numbers as scikit-learn does; let frames and texts through.

    Missing numbers are allowed: whether the learner takes them is tried. No message
    shows a value. Of ``private`` frames only the names of the columns are looked at.
    """
    from sklearn.utils.validation import validate_data

    if hasattr(X, "column_names") and hasattr(X, "to_pandas"):
        # A pyarrow Table, which few learners take.
        X = X.schema.empty_table().to_pandas() if private else X.to_pandas()
    if hasattr(X, "iloc") or hasattr(X, "get_columns") or _is_text(X):
        return validate_data(owner, X, reset=reset, skip_check_array=True)
    if isinstance(X, list | tuple):
        X = _list_to_floats(X)
    try:
        return validate_data(
            owner,
            X,
            reset=reset,
            accept_sparse=["csr"],
            ensure_all_finite="allow-nan",
            dtype="numeric",
        )
    except ValueError as error:
        raise _without_values(error) from None
    except OverflowError:
        raise ParameterError(
            "X must hold numbers that a float can hold, got one that is too large."
        ) from None


def _refuse_odd_pool(pool: Any) -> None:
    """Refuse public records of which nothing can be learned."""
    frame = hasattr(pool, "iloc") and pool.ndim == 2
    if frame and not pool.columns.is_unique:
        raise ParameterError("X_public must not have two columns of one name.")
    if n_rows(unwrapped(pool)) == 0:
        raise ParameterError("X_public must hold at least one record.")


def validate_pool(owner: Any, pool: Any, *, reset: bool) -> Any:
    """Check public records as those that they go with; columns may be in any order."""
    _refuse_odd_pool(pool)
    names = getattr(owner, "feature_names_in_", None)
    if not reset and names is not None and hasattr(pool, "iloc"):
        own = list(getattr(pool, "columns", ()))
        if own != list(names) and sorted(map(str, own)) == sorted(map(str, names)):
            pool = pool[list(names)]
    try:
        return owner._validate(pool, reset=reset)
    except ValueError as error:
        raise ParameterError(
            f"X_public does not go with X: {error} Give both the same columns."
        ) from error


def _without_values(error: ValueError) -> ValueError:
    """Return scikit-learn's error, without the records that it may show."""
    message = str(error).partition("\n")[0]
    if "could not convert" in message:
        return ParameterError(
            "X must hold numbers only, got a text. Pass a DataFrame and an estimator "
            "that is a pipeline which encodes its columns."
        )
    if "Expected 2D array" in message or "Complex data" in message:
        first = message.partition("array=")[0].rstrip(": ")
        return ParameterError(
            f"{first}. Reshape your data: one row a record, real numbers."
        )
    if any(part in message for part in _SAFE_MESSAGES):
        return ParameterError(message)
    return ParameterError(
        "X cannot be read as a table of numbers. Pass one row a record, all of one "
        "length."
    )


def _is_text(X: Any) -> bool:
    first = X[0] if isinstance(X, list) and X else None
    array_of_text = isinstance(X, np.ndarray) and X.ndim == 1 and X.dtype.kind in "OUT"
    return isinstance(first, str) or array_of_text


def _list_to_floats(rows: Any) -> Any:
    """Convert cell by cell; what is not a number is left to the checks."""
    try:
        return np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return rows
