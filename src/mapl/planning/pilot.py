"""How teachers vote, tried on public records: free, and not protected in any way."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing
from sklearn.utils.multiclass import check_classification_targets

from mapl.arrays import Floats, n_rows
from mapl.errors import ParameterError, integer
from mapl.privacy.votes import Votes
from mapl.teachers.panel import ask
from mapl.teachers.training import train


@dataclass(frozen=True)
class Pilot:
    """How teachers of a given size vote on public records.

    For each record, ``dissent`` is the share of teachers that differ from the
    plurality, ``lead`` by what share the first class leads. ``best_error`` is how
    often the plurality is wrong.
    """

    dissent: Floats
    lead: Floats
    best_error: float
    records_each: int

    @property
    def teacher_error(self) -> float:
        """How often a teacher differs from the plurality."""
        return float(self.dissent.mean())


def pilot(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    records_each: int,
    n_teachers: int = 100,
    n_queries: int = 2000,
    random_state: int = 0,
) -> Pilot:
    """Train teachers on public, labelled records, and look at their votes.

    Parameters
    ----------
    estimator : classifier
        The learner.
    X, y : array-like
        Records that are NOT sensitive, or synthetic ones: what this returns is not
        protected in any way.
    records_each : int
        How many records a teacher will have: private records / teachers.
    n_teachers : int
        How many to train here. Where records are few the teachers share them, and agree
        more than they will.
    n_queries : int
        How many records are kept as queries, at most half of them.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.linear_model import LogisticRegression
    >>> from mapl.planning.pilot import pilot
    >>> X, y = make_classification(4000, class_sep=2.0, random_state=0)
    >>> found = pilot(LogisticRegression(), X, y, records_each=50, n_teachers=50)
    >>> found.teacher_error < 0.1
    True
    """
    n = n_rows(X)
    each = integer(records_each=records_each, at_least=2)
    n_teachers = integer(n_teachers=n_teachers, at_least=2)
    n_queries = integer(n_queries=n_queries, at_least=1)
    if n < 10 * each:
        raise ParameterError(
            f"records_each must be at most a tenth of the {n} public records, got "
            f"{each}: teachers that share most of their records agree too often."
        )
    check_classification_targets(y)
    labels, codes = np.unique(np.asarray(y), return_inverse=True)
    if len(codes) != n:
        raise ParameterError(
            f"X and y must have the same length, got {n}, {len(codes)}."
        )
    if len(labels) < 2:
        raise ParameterError(
            "y must have at least two classes: one is always agreed on."
        )
    rng = np.random.default_rng(random_state)
    order = rng.permutation(n)
    asked, rest = np.split(order, [min(n_queries, n // 2)])
    shuffled = np.concatenate(
        [rng.permutation(rest) for _ in range(-(-n_teachers * each // len(rest)))]
    )
    chunks = [shuffled[j * each : (j + 1) * each] for j in range(n_teachers)]
    teachers = train(
        estimator, X, codes, chunks, labels=labels, random_state=random_state
    )
    queries = _safe_indexing(X, asked)
    votes = Votes(ask(teachers, queries, n_classes=len(labels)), len(labels))
    if votes.counts.sum() < n_teachers * len(asked) / 2:
        raise ParameterError(
            "Most of the teachers have no vote: the estimator fails on these records. "
            "Put what prepares the columns into a pipeline with it."
        )
    best_error = float((votes.winner != codes[asked]).mean())
    second, first = np.sort(votes.counts, axis=1)[:, -2:].T / n_teachers
    return Pilot(1 - first, first - second, best_error, each)
