"""Public points as numbers, for the student."""

from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from mapl.arrays import Floats
from mapl.errors import ParameterError
from mapl.records.containers import container_kind
from mapl.records.schema import Schema
from mapl.records.table import copy_of

_MOST_FEATURES = 1500  # beyond, features are projected
_RARE = 5  # points: rarer texts share one code


def public_features(estimator: Any, pool: Any) -> Floats:
    """Return the public points as numbers.

    By the estimator's own pipeline if it has one that needs no labels, else by a plain
    encoding.
    """
    try:
        return _features(estimator, pool)
    except Exception as error:  # nothing here is private
        raise ParameterError(
            f"X_public cannot be turned into numbers: {error} Let the estimator be a "
            "pipeline that does it. Nothing was released."
        ) from error


def _features(estimator: Any, pool: Any) -> Floats:
    """Try the estimator's own transformers first."""
    inner = getattr(estimator, "estimator", estimator)
    if isinstance(inner, Pipeline) and len(inner) > 1:
        try:
            return _dense(clone(inner[:-1]).fit_transform(copy_of(pool)))
        except (TypeError, ValueError):  # a step that wants labels, or leaves texts
            pass
    return _dense(_plain_features(pool))


def _plain_features(pool: Any) -> Any:
    """Encode any kind of pool: sparse, frame, texts, or numbers."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import MaxAbsScaler, StandardScaler

    container = container_kind(pool)
    if container == "sparse":
        return MaxAbsScaler().fit_transform(pool)
    if container in ("pandas", "polars"):
        frame = pool if container == "pandas" else pool.to_pandas()
        schema = Schema.of_numbers_and_texts(frame)
        typed = schema.cast(frame)
        return schema.fit_encoder(typed, min_frequency=_RARE)[1]
    if np.ndim(pool) == 1:
        return TfidfVectorizer(sublinear_tf=True, min_df=2).fit_transform(pool)
    table = SimpleImputer(keep_empty_features=True).fit_transform(pool)
    # A column of two values is a code: scaled like the others, a rare one would
    # dominate.
    codes = [len(np.unique(column)) <= 2 for column in np.asarray(table).T]
    return np.where(codes, table, StandardScaler().fit_transform(table))


def _dense(table: Any) -> Floats:
    """Return finite, dense numbers; many columns are projected."""
    if hasattr(table, "toarray"):
        table = table.tocsr().astype(np.float64)
        table.data = _finite(table.data)
    else:
        table = _finite(np.asarray(table, dtype=np.float64))
    if table.shape[1] > _MOST_FEATURES:
        from sklearn.decomposition import TruncatedSVD

        n_components = min(_MOST_FEATURES // 5, table.shape[0] - 1)
        table = TruncatedSVD(n_components, random_state=0).fit_transform(table)
    return np.asarray(table.toarray() if hasattr(table, "toarray") else table)


def _finite(values: Floats) -> Floats:
    """Replace what neighbour searches and trees refuse."""
    return np.clip(np.nan_to_num(values), -1e30, 1e30)
