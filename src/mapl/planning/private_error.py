"""How often teachers are wrong on the private records: a release like any other."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mapl.arrays import Array, Ints
from mapl.errors import ParameterError, integer, positive, probability
from mapl.learners import check_classifier, learner_digest
from mapl.ledger.budget import releases
from mapl.privacy.noisy_counts import NoisyCount
from mapl.privacy.search import least_root
from mapl.privacy.votes import NO_VOTE
from mapl.publish import certificate
from mapl.records.labels import declared_classes, encode
from mapl.records.private import PrivateRecords, private_records
from mapl.records.schema import Schema
from mapl.records.table import canonical_table
from mapl.release.account import Account, open_account
from mapl.release.labeler import release_count
from mapl.teachers.isolation import check_loadable
from mapl.teachers.voting import Chunks, votes_on_own_points

_PUBLIC = ("n_teachers", "n_records", "largest", "classes")  # as in a certificate
_MOST_NOISE = 0.25  # on an error: beyond, nothing is learned


@dataclass(frozen=True)
class PrivateError:
    """A private estimate of how often a teacher is wrong. Public.

    ``standard_error`` is that of the noise and of the records tried, together.
    """

    error: float
    standard_error: float
    certificate: dict[str, Any]


@releases
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
    budget: Account | None = None,
    ledger: str | None = None,
    dataset: str | None = None,
    random_state: int = 0,
) -> PrivateError:
    r"""Estimate how often a teacher is wrong (the paper's gamma + alpha, Remark 1).

    Half of the records train k teachers, the other half is cut into k blocks, and
    teacher j is tried on block j. Mistakes are counted up to a cap for each block, so
    that one record, or all records of one person, move the sum by at most the cap,
    wherever they lie. The sum in caps is published with Gaussian noise.

    Parameters
    ----------
    estimator : classifier
        The learner.
    X : ndarray of numbers, shape (n, n_features)
        The private records. In a frame, the types of the columns would have to be
        public.
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
        All labels that may occur; public.
    largest : float
        The largest error of a teacher that is counted in full; the smaller, the less
        noise. What is cut off is estimated as if all teachers were equally good.
    groups : array-like or None
        Whose record each is: the guarantee is then for a whole person.
    budget : Account or None
        Who is charged, in memory.
    ledger, dataset : str or None
        URL of a ledger and the name of the data set there: the same call again returns
        the stored answer, for nothing.

    Notes
    -----
    Guarantee: for one unit added or removed, what accounting certifies for its event.
    Proof: docs/proofs/private_error.md
    """
    k = integer(n_teachers=n_teachers, at_least=1)
    n_records = integer(n_records=n_records, at_least=2 * k)
    labels = _checked_classes(classes)
    private = _checked_records(X, y, groups, labels)
    check_classifier(estimator)
    check_loadable(estimator)
    random_state = integer(random_state=random_state, at_least=0)
    mechanism = NoisyCount.for_budget(epsilon=positive(epsilon=epsilon), delta=delta)
    block = n_records / (2 * k)
    cap = max(1, math.ceil(probability(largest=largest) * block))
    noise = _checked_noise(float(mechanism.sigma) * cap / (k * block), k)
    _check_who_is_charged(budget, ledger, dataset)
    names = certificate.labels_as_json(labels)
    sizes = (float(epsilon), float(delta), k, n_records, float(largest), names)
    request = (*sizes, groups is not None, random_state, learner_digest(estimator))
    account = budget or open_account(
        epsilon=sizes[0],
        delta=sizes[1],
        ledger=ledger,
        dataset=dataset,
        request=repr(("private error", *request)).encode(),
        note="the teachers' error",
        seed=random_state,
        keys=lambda: private.keys,
        assignment=lambda seed: private.assignment(2 * k, salt=seed),
    )
    seed = random_state if budget is not None else account.seed
    noisy = release_count(
        mechanism,
        lambda: in_caps(_mistakes(estimator, private, labels, k=k, seed=seed), cap),
        account=account,
    )
    error, uncut = _uncapped(noisy * cap / k, block, cap)
    return PrivateError(
        error=error,
        standard_error=math.hypot(noise / uncut, math.sqrt(error / (k * block))),
        certificate=certificate.make(
            [mechanism.event],
            delta=sizes[1],
            **certificate.protection(grouped=groups is not None),
            mechanism="private error",
            public=dict(zip(_PUBLIC, sizes[2:], strict=True)),
            ledger=account.receipt(),
        ),
    )


def _checked_noise(noise: float, k: int) -> float:
    """Refuse noise that would hide any error."""
    if noise > _MOST_NOISE:
        raise ParameterError(
            f"{k:,} teachers are too few: noise of {noise:.2g} would be added to an "
            "error. Take more of them, or a larger epsilon."
        )
    return noise


def _check_who_is_charged(
    budget: Account | None, ledger: str | None, dataset: str | None
) -> None:
    """Refuse a ledger without a data set, or beside a budget."""
    if (ledger is None) != (dataset is None) or (ledger and budget):
        raise ParameterError(
            "Pass ledger and dataset, or a budget, or none of them: who is charged "
            "must be clear."
        )


def _checked_classes(classes: Any) -> Array:
    """Return the declared classes, two at least."""
    labels = declared_classes(classes)
    if len(labels) < 2:
        raise ParameterError(
            "classes must name every label that may occur, two at least."
        )
    return labels


def _checked_records(X: Any, y: Any, groups: Any, labels: Array) -> PrivateRecords:
    """Return the records in canonical form; a label outside the classes is kept: it is
    always wrong.
    """
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.dtype.kind not in "fiub":
        raise ParameterError(
            f"X must be an array of numbers with two dimensions, got "
            f"{type(X).__name__}. Encode columns by rules that are public first."
        )
    codes = encode(y, labels)
    if len(codes) != len(X):
        raise ParameterError("X and y must have the same length.")
    table = canonical_table(X, Schema.of(np.zeros((1, X.shape[1]))))
    return private_records(table, codes, groups, takes_missing=True, on_invalid="drop")


def in_caps(mistakes: Ints, cap: int) -> int:
    """Return the sum of mistakes, each block's up to the cap, in caps, rounded."""
    return int((np.minimum(mistakes, cap).sum() + cap // 2) // cap)


def _uncapped(counted: float, block: float, cap: int) -> tuple[float, float]:
    """Return the error at which so many mistakes of a block are counted, and the share
    of blocks that are then below the cap.

    A record falls into any block, so a block's mistakes are Poisson with mean error
    times block. Post-processing.
    """
    from scipy.special import pdtr

    below = np.arange(cap)

    def enough(error: float) -> bool:
        return bool((1 - pdtr(below, error * block)).sum() >= counted)

    error = min(1.0, least_root(enough, precision=1e-12))
    return error, max(float(pdtr(cap - 1, error * block)), 1e-3)


def _mistakes(
    estimator: Any, private: PrivateRecords, labels: Array, *, k: int, seed: int
) -> Ints:
    """Return how many records of block j teacher j gets wrong.

    A teacher without a vote gets all of them wrong; a label outside the classes is
    always wrong.
    """
    chunks = private.all_chunks(2 * k, salt=seed)
    codes = private.codes
    training = [rows[codes[rows] >= 0] for rows in chunks[:k]]
    votes = votes_on_own_points(
        estimator,
        Chunks(private.table.data, codes, training, private.keys),
        chunks[k:],
        labels=labels,
        random_state=seed,
    )
    wrong = np.zeros(k, dtype=np.int64)
    for j, rows in enumerate(chunks[k:]):
        found = np.full(len(rows), NO_VOTE) if votes[j] is None else votes[j]
        wrong[j] = int(((found != codes[rows]) | (found < 0)).sum())
    return wrong
