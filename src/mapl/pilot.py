r"""How good are teachers? On public data for nothing, on private data for a price.

A plan needs to know how often a teacher differs from the others. `pilot` measures that
on labelled records that are not sensitive. `private_error` measures how often teachers
are wrong on the private records themselves (Remark 1 of the paper): that is a release,
charged and certified like any other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import numpy.typing as npt
from sklearn.utils import _safe_indexing
from sklearn.utils.multiclass import check_classification_targets

from mapl import certificate
from mapl.dissent import least_sigma
from mapl.errors import ParameterError, integer, positive, probability
from mapl.events import GaussianEvent
from mapl.labeler import Budget
from mapl.noise import discrete_gaussian
from mapl.partition import chunk_rows, n_rows, record_digests
from mapl.teachers import ask, check_classifier, train
from mapl.votes import Votes

if TYPE_CHECKING:
    from mapl.ledger import Job

_MOST_NOISE = 0.25  # on an error: beyond, nothing is learned

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pilot:
    """What teachers of a size do on public records.

    Attributes
    ----------
    dissent : ndarray
        Of each record, the part of the teachers that do not vote with the plurality.
    lead : ndarray
        Of each record, by what part of the teachers the first class leads the second.
    best_error : float
        How often the plurality is wrong.
    records_each : int
        How many records a teacher had.
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
        How many to train here; they share records where these are few, and seem to
        agree more than they will.
    n_queries : int
        How many records are kept for asking, at most half of them.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.linear_model import LogisticRegression
    >>> from mapl.pilot import pilot
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
            f"{each}: teachers that share most of their records agree more than others."
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


@dataclass(frozen=True)
class PrivateError:
    """A private estimate of how often a teacher is wrong, and its standard error, of
    noise and of the records tried together. Public.
    """

    error: float
    standard_error: float
    certificate: dict[str, Any]


def private_error(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    epsilon: float,
    delta: float,
    n_teachers: int,
    n_records: int,
    classes: Any,
    largest: float = 0.5,
    groups: Any = None,
    budget: Budget | None = None,
    ledger: str | None = None,
    dataset: str | None = None,
    random_state: int = 0,
) -> PrivateError:
    r"""Estimate how often a teacher is wrong (the paper's gamma + alpha, Remark 1).

    Half of the records train k teachers, the other half is cut into k blocks, and
    teacher j is tried on block j. Mistakes are counted up to a cap for each block, so
    that one record, or all records of one person, wherever they lie, move the sum by at
    most the cap; the sum in caps is published with Gaussian noise.

    Parameters
    ----------
    estimator : classifier
        The learner.
    X : ndarray of numbers, shape (n, n_features)
        The private records. (A frame could tell one record's value to all teachers, by
        the type of a column.)
    y : array-like
        Their labels.
    epsilon, delta : float
        What it may cost.
    n_teachers : int
        k. The noise is about ``largest`` * sigma / k of error: take many.
    n_records : int
        How many records there are, as far as is public. It scales the result: twice
        the true number makes half of the error.
    classes : array-like
        All labels that there are; public.
    largest : float
        Of a teacher's error, what is counted; the smaller, the less noise. What is cut
        off is made up for as if all teachers were wrong equally often.
    groups : array-like or None
        Whose record each is: the guarantee then is for a whole person.
    budget : Budget or None
        Who is charged, in memory.
    ledger, dataset : str or None
        URL and name of the data set, for a budget that lasts: the same again gets the
        same answer, for nothing.

    Notes
    -----
    Guarantee: for one unit added or removed, what accounting certifies for its event.
    Proof: docs/proofs/private_error.md
    """
    k = integer(n_teachers=n_teachers, at_least=1)
    n_records = integer(n_records=n_records, at_least=2 * k)
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.dtype.kind not in "fiub":
        raise ParameterError(
            f"X must be an array of numbers with two dimensions, got "
            f"{type(X).__name__}. Encode columns by rules that are public first."
        )
    if (ledger is None) != (dataset is None) or (ledger and budget):
        raise ParameterError(
            "Pass ledger and dataset, or a budget, or none of them: who is charged "
            "must be clear."
        )
    labels = np.unique(np.asarray(classes))
    if len(labels) < 2:
        raise ParameterError(
            "classes must name every label that may occur, two at least."
        )
    if getattr(y, "ndim", 1) == 2 and hasattr(y, "ravel"):
        y = y.ravel()
    codes = _codes(y, labels)
    if len(codes) != len(X):
        raise ParameterError("X and y must have the same length.")
    check_classifier(estimator)
    random_state = integer(random_state=random_state, at_least=0)
    sigma = least_sigma(epsilon=positive(epsilon=epsilon), delta=delta, steps=1)
    event = GaussianEvent(sigma=sigma, steps=1)
    block = n_records / (2 * k)
    cap = max(1, math.ceil(probability(largest=largest) * block))
    if (noise := float(sigma) * cap / (k * block)) > _MOST_NOISE:
        raise ParameterError(
            f"{k:,} teachers are too few: noise of {noise:.2g} would be added to an "
            "error. Take more of them, or a larger epsilon."
        )
    paid: Budget | Job
    if ledger is None:
        paid = budget or Budget(epsilon=epsilon, delta=delta)
        seed = random_state
    else:
        from mapl.ledger import Ledger

        public = (epsilon, delta, k, n_records, largest, labels.tolist())
        asked_for = (*public, groups is not None, random_state, joblib.hash(estimator))
        paid, sealed = Ledger(ledger).begin(
            str(dataset),
            repr(("private error", *asked_for)).encode(),
            delta=delta,
            what="the teachers' error",
            seed=random_state,
            records=record_digests(X, codes),
        )
        seed = int(sealed["seed"])
    chunks = chunk_rows(X, codes, groups, n_chunks=2 * k, salt=seed)
    paid.charge(event)
    known = paid.asked(1)
    if known is None or known.reply is None:
        mistakes = _mistakes(estimator, X, codes, chunks, labels, seed)
        units = in_caps(mistakes, cap)
        paid.before_draw(1, {}, b"")
        drawn = units + int(discrete_gaussian(sigma, 1)[0])
        _, reply = paid.before_answer(1, {}, b"%d" % drawn)
    else:
        reply = known.reply
    error, uncut = _uncapped(int(reply) * cap / k, block, cap)
    unit = "a record" if groups is None else "all records of one group"
    return PrivateError(
        error=error,
        standard_error=math.hypot(noise / uncut, math.sqrt(error / (k * block))),
        certificate=certificate.make(
            [event],
            delta=delta,
            unit=unit,
            neighbours=f"if one unit ({unit}) is added to the private data or removed",
            mechanism="private error",
            public={
                "n_teachers": k,
                "n_records": n_records,
                "classes": labels.tolist(),
                "largest": largest,
            },
            ledger=paid.receipt(),
        ),
    )


def in_caps(mistakes: Ints, cap: int) -> int:
    """Return the sum of what is at most the cap in each block, in caps, rounded."""
    return int((np.minimum(mistakes, cap).sum() + cap // 2) // cap)


def _uncapped(counted: float, block: float, cap: int) -> tuple[float, float]:
    """Return the error for which so many mistakes of a block are counted, and how many
    of the blocks are then below the cap.

    A record falls into any block, so a block's mistakes are Poisson of mean error times
    block. (Post-processing.)
    """
    from scipy.special import pdtr

    below = np.arange(cap)
    low, high = 0.0, 1.0
    for _ in range(50):
        error = (low + high) / 2
        enough = (1 - pdtr(below, error * block)).sum() >= counted
        low, high = (low, error) if enough else (error, high)
    return error, max(float(pdtr(cap - 1, error * block)), 1e-3)


def _codes(y: Any, labels: npt.NDArray[Any]) -> Ints:
    """Return the class index of each label, cell by cell; -1 for what is no class.

    Numbers and texts are taken alike: one label that is no number makes texts of all in
    a file, and one that is missing makes floats of integers.
    """

    def text(cell: Any) -> str:
        whole = isinstance(cell, float) and cell.is_integer()
        return str(int(cell)) if whole else str(cell)

    number = {text(label): code for code, label in enumerate(labels.tolist())}
    names = ("to_pylist", "tolist")
    listed = next((getattr(y, name) for name in names if hasattr(y, name)), None)
    cells = list(y) if listed is None else listed()
    return np.array([number.get(text(cell), -1) for cell in cells], dtype=np.int64)


def _mistakes(
    estimator: Any,
    X: npt.NDArray[Any],
    codes: Ints,
    chunks: list[Ints],
    labels: npt.NDArray[Any],
    seed: int,
) -> Ints:
    """Return how many records of block j teacher j gets wrong; one without a vote gets
    all of them wrong, and what is no class is always wrong.
    """
    k = len(chunks) // 2
    training = [rows[codes[rows] >= 0] for rows in chunks[:k]]
    teachers = train(estimator, X, codes, training, labels=labels, random_state=seed)
    wrong = np.zeros(k, dtype=np.int64)
    for j, rows in enumerate(chunks[k:]):
        if len(rows):
            said = ask([teachers[j]], X[rows], n_classes=len(labels))[0]
            wrong[j] = int(((said != codes[rows]) | (said < 0)).sum())
    return wrong
