"""What accuracy to expect of an epsilon, tried on public labelled records."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import _safe_indexing

from mapl.arrays import Array, n_rows
from mapl.errors import ParameterError, PrivacyWarning, integer, positive
from mapl.estimator import PrivateClassifier
from mapl.progress import Progress

EPSILONS = (0.1, 0.3, 1.0, 3.0, 8.0)
_FEWEST = 100  # labelled records
_WEAKEST = 1e4  # epsilon that is tried in place of a larger one


def sweep(
    X: Any,
    y: Any,
    *,
    epsilons: Sequence[float] = EPSILONS,
    n_records: int | None = None,
    model: PrivateClassifier | None = None,
    runs: int = 3,
    random_state: int = 0,
) -> list[dict[str, float]]:
    """Return the accuracy to expect for each epsilon, from public labelled records.

    Three fifths of them play the private records, a fifth the public points, a fifth
    the test. Where the private records are more (``n_records``), epsilon is enlarged in
    proportion: what can be learned follows records times epsilon.

    Parameters
    ----------
    X, y : array-like
        Records and labels that are not private, like those that are.
    epsilons : sequence of float
        To be tried.
    n_records : int or None
        About how many private records there will be; as many as are tried if None.
    model : PrivateClassifier or None
        Whose other parameters are taken.
    runs : int
        Fits for each epsilon.
    random_state : int
        Seeds the splits. Noise takes no seed.

    Returns
    -------
    list of dict
        ``epsilon``, ``accuracy`` (mean), ``spread`` (standard deviation), and
        ``always_most_frequent``, which any model should beat.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from mapl import sweep
    >>> X, y = make_classification(2000, random_state=0)
    >>> found = sweep(X, y, epsilons=[1, 8], n_records=20_000, runs=1)
    >>> [row["epsilon"] for row in found]
    [1.0, 8.0]
    """
    labels = np.asarray(y)
    if len(labels) < _FEWEST or n_rows(X) != len(labels):
        raise ParameterError(
            f"X and y must have the same number of records, at least {_FEWEST}."
        )
    values = [positive(epsilon=epsilon) for epsilon in epsilons]
    integer(runs=runs, at_least=1)
    base = PrivateClassifier() if model is None else model
    found = []
    with Progress("Trying epsilons", len(values) * runs) as progress:
        for epsilon in values:
            scores = np.empty((runs, 2))
            for run in range(runs):
                seed = random_state + run
                scores[run] = _score(base, X, labels, epsilon, n_records, seed)
                progress.advance(1)
            accuracy, frequent = scores.mean(axis=0)
            found.append(
                {
                    "epsilon": float(epsilon),
                    "accuracy": float(accuracy),
                    "spread": float(scores[:, 0].std()),
                    "always_most_frequent": float(frequent),
                }
            )
    return found


def _score(
    base: PrivateClassifier,
    X: Any,
    labels: Array,
    epsilon: float,
    n_records: int | None,
    seed: int,
) -> tuple[float, float]:
    """Return the accuracy of one fit, and of the most frequent class."""
    order = np.random.default_rng(seed).permutation(len(labels))
    test, pool, private = np.split(order, [len(order) // 5, 2 * (len(order) // 5)])
    more = 1.0 if n_records is None else max(1.0, n_records / len(private))
    tried = clone(base).set_params(
        epsilon=min(epsilon * more, _WEAKEST),
        classes=np.unique(labels).tolist(),
        ledger=None,
        dataset=None,
        n_records=None,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        warnings.simplefilter("ignore", UserWarning)
        tried.fit(
            _safe_indexing(X, private),
            labels[private],
            X_public=_safe_indexing(X, pool),
            allow_overlap=True,  # all of them are public
        )
        given = tried.predict(_safe_indexing(X, test))
    frequent = max(np.unique(labels[test], return_counts=True)[1]) / len(test)
    return float((given == labels[test]).mean()), float(frequent)
