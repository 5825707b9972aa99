"""Fits as a stranger sees them: trained, published, asked about a canary."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binom

from mapl.arrays import Bools, Floats
from mapl.audit.canaries import as_frame, as_given
from mapl.audit.mechanisms import Experiment
from mapl.audit.tradeoff import Claim
from mapl.audit.worlds import Data, classes_of, fit_apart, model_of
from mapl.errors import ParameterError, integer, probability
from mapl.progress import Progress

_STEPS = 40  # of a search for an epsilon


class WholeFits(Experiment):
    """Fits from nothing to a published model, with the canary and without.

    What is scored is the model's probability of the canary's label.
    """

    known = [np.ones(1)]  # noqa: RUF012

    def __init__(
        self, model: Any, without: Data, with_: Data, canary: Any, label: Any
    ) -> None:
        self._model, self._data = model, {False: without, True: with_}
        self._canary, self._label = canary, label
        fitted = fit_apart(model, without)
        check_probabilities(fitted)
        private = model_of(fitted)
        self.claim = Claim(tuple(private.events_), float(private.delta))

    def once(self, present: bool) -> Any:
        """Fit once; return the probability of the canary's label."""
        fitted = fit_apart(self._model, self._data[present])
        column = column_of(fitted, self._label)
        return [float(fitted.predict_proba(self._canary)[0, column])]


def check_probabilities(fitted: Any) -> None:
    """Refuse a model that cannot be scored."""
    if not hasattr(fitted, "predict_proba"):
        raise ParameterError(
            "This model has no probabilities to be scored. Set student= to a "
            "classifier that has predict_proba."
        )


def column_of(fitted: Any, label: Any) -> int:
    """Return the column of a label's probability; labels are compared as texts."""
    return [str(one) for one in fitted.classes_].index(str(label))


# Many canaries, one fit -------------------------------------------------------------


@dataclass(frozen=True)
class OneRun:
    """What one fit shows of many canaries."""

    claimed: float
    real: float
    refuted: bool
    n_canaries: int
    n_guesses: int
    n_right: int
    attainable: float  # what all guesses right would show

    def sentence(self) -> str:
        """Return the verdict for people."""
        found = f"{self.n_right} of {self.n_guesses} guesses right"
        if self.refuted:
            return (
                f"REFUTED: {found}; the claimed epsilon {self.claimed:.3g} does not "
                "allow as many."
            )
        return (
            f"not refuted: {found}; at least {self.real:.3g} of the claimed "
            f"{self.claimed:.3g} is real (with so many canaries at most "
            f"{self.attainable:.3g} could show)"
        )

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**vars(self), "verdict": self.sentence()}


def audit_one_run(
    model: Any,
    X: Any,
    y: Any,
    *,
    X_public: Any = None,
    groups: Any = None,
    canaries: int = 500,
    confidence: float = 0.999,
) -> OneRun:
    """Add each of many mislabelled records with probability 1/2, fit once, and guess
    which were there (Steinke, Nasr and Jagielski, arXiv 2305.08846).
    """
    integer(canaries=canaries, at_least=20)
    probability(confidence=confidence)
    data = Data.of(model, X, y, groups, X_public)
    if model_of(model).privacy == "labels":
        raise ParameterError(
            "A one-run audit adds records, and this claim is about labels. Use "
            "audit_fit."
        )
    rng = np.random.default_rng(secrets.randbits(64))
    rows, labels = _mislabelled(data, classes_of(model, data.y), canaries, rng)
    present = rng.random(canaries) < 0.5
    some = np.flatnonzero(present)
    with Progress("Fitting once", 1) as progress:
        whole = data.with_records(rows.iloc[some], [labels[i] for i in some])
        fitted = fit_apart(model, whole)
        progress.advance(1)
    check_probabilities(fitted)
    shares = fitted.predict_proba(as_given(rows, X))
    columns = [column_of(fitted, label) for label in labels]
    scores = shares[np.arange(canaries), columns]
    private = model_of(fitted)
    epsilon = Claim(tuple(private.events_), float(private.delta)).epsilon
    return judge_one_run(
        scores, present, epsilon, float(private.delta), confidence=confidence
    )


def _mislabelled(data: Data, classes: list[Any], n: int, rng: Any) -> Any:
    """Return copies of records, each with a label that is not its own."""
    usable = data.rows_of(classes)
    rows = usable[rng.choice(len(usable), size=n, replace=n > len(usable))]
    labels = []
    for row in rows:
        others = [label for label in classes if label != data.y[row]]
        labels.append(others[int(rng.integers(len(others)))])
    return as_frame(data.X).iloc[rows].reset_index(drop=True), labels


def judge_one_run(
    scores: Floats,
    present: Bools,
    epsilon: float,
    delta: float,
    *,
    confidence: float,
) -> OneRun:
    """Guess that the highest third of the scores were there and the lowest were not,
    and compare with the most that is allowed.
    """
    m = len(scores)
    order, third = np.argsort(scores, kind="stable"), max(1, m // 3)
    right = int(present[order[-third:]].sum() + (~present[order[:third]]).sum())
    level = 1 - confidence
    real = largest_refuted(m, 2 * third, right, delta, level)
    attainable = largest_refuted(m, 2 * third, 2 * third, delta, level)
    shown = min(real, epsilon), real >= epsilon
    return OneRun(epsilon, *shown, m, 2 * third, right, attainable)


def largest_refuted(m: int, n: int, right: int, delta: float, level: float) -> float:
    """Return the largest epsilon that so many right guesses refute."""
    low, high = 0.0, 20.0
    if chance_of(m, n, right, 0.0, delta) > level:
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        refuted = chance_of(m, n, right, middle, delta) <= level
        low, high = (middle, high) if refuted else (low, middle)
    return low


def chance_of(m: int, n: int, right: int, epsilon: float, delta: float) -> float:
    """Return the highest probability that ``right`` of ``n`` guesses about ``m``
    canaries are right, or more, if a fit is (epsilon, delta)-private.

    Theorem 5.2 of the paper: the binomial tail at e^epsilon/(1 + e^epsilon), and what
    delta adds.
    """
    share = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, n, share))
    short = np.arange(1, right + 1)
    within = np.cumsum(binom.pmf(right - short, n, share))
    most = float((within / short).max(initial=0.0))
    return min(1.0, tail + 2 * m * delta * most)
