"""Fits as a stranger sees them: trained, published, asked about a canary."""

from __future__ import annotations

import math
import secrets
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binom
from sklearn.base import clone

from mapl.arrays import Array, Bools, Floats
from mapl.audit.canaries import as_frame, as_given, with_canary
from mapl.audit.mechanisms import Experiment
from mapl.audit.tradeoff import Claim
from mapl.progress import Progress

_STEPS = 40  # of a search for an epsilon


class WholeFits(Experiment):
    """Fits from nothing to a published model, with the canary and without.

    What is scored is the model's probability of the canary's label.
    """

    known = [np.ones(1)]  # noqa: RUF012

    def __init__(
        self, model: Any, X: Any, y: Any, canary: Any, label: Any, **more: Any
    ) -> None:
        self._model, self._more = model, more
        self._canary, self._label = canary, label
        without, with_ = worlds(model, X, y, canary, label)
        self._data = {False: without, True: with_}
        fitted = self._fit(False)
        self.claim = Claim(tuple(model_of(fitted).events_), model_of(fitted).delta)

    def _fit(self, present: bool) -> Any:
        X, y = self._data[present]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            more = with_owner(self._more, len(y))
            return clone(self._model).fit(X, y, **more)

    def once(self, present: bool) -> Any:
        """Fit once; return the probability of the canary's label."""
        fitted = self._fit(present)
        column = list(fitted.classes_).index(self._label)
        return [float(fitted.predict_proba(self._canary)[0, column])]


def worlds(
    model: Any, X: Any, y: Array, canary: Any, label: Any
) -> list[tuple[Any, Array]]:
    """Return neighbours: the records, and those with the canary in front.

    Where labels alone are private it is in both, with two labels.
    """
    records = with_canary(X, canary)
    with_ = records, _with_label(y, label)
    if model_of(model).privacy == "records":
        return [(X, y), with_]
    other = next(one for one in y if one != label)
    return [(records, _with_label(y, other)), with_]


def _with_label(y: Array, label: Any) -> Array:
    """Return labels with that of the canary in front of them."""
    return np.concatenate([np.asarray([label], dtype=y.dtype), y])


def with_owner(more: dict[str, Any], n: int) -> dict[str, Any]:
    """Return the groups with an owner for the canary: somebody new."""
    groups = more.get("groups")
    if groups is None or len(groups) == n:
        return more
    return more | {"groups": ["canary", *map(str, groups)]}


def model_of(model: Any) -> Any:
    """Return the private classifier, which may stand at the end of a pipeline."""
    return model[-1] if hasattr(model, "steps") else model


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
            f"{self.claimed:.3g} is real"
        )

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**vars(self), "verdict": self.sentence()}


def audit_one_run(
    model: Any,
    X: Any,
    y: Any,
    *,
    canaries: int = 500,
    confidence: float = 0.999,
    **more: Any,
) -> OneRun:
    """Add each of many mislabelled records with probability 1/2, fit once, and guess
    which were there (Steinke, Nasr and Jagielski, arXiv 2305.08846).
    """
    y = np.asarray(y)
    rng = np.random.default_rng(secrets.randbits(64))
    given, labels = _mislabelled(X, y, model_of(model).classes, canaries, rng)
    present = rng.random(canaries) < 0.5
    frame = as_frame(X)
    whole = as_given(_stacked(frame, as_frame(given).iloc[np.flatnonzero(present)]), X)
    with Progress("Fitting once", 1) as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if more.get("groups") is not None:
            own = [f"canary {i}" for i in range(int(present.sum()))]
            more = more | {"groups": [*map(str, more["groups"]), *own]}
        fitted = clone(model).fit(whole, np.concatenate([y, labels[present]]), **more)
        progress.advance(1)
    shares = fitted.predict_proba(given)
    columns = [list(fitted.classes_).index(label) for label in labels]
    scores = shares[np.arange(canaries), columns]
    private = model_of(fitted)
    epsilon = Claim(tuple(private.events_), private.delta).epsilon
    return judge_one_run(scores, present, epsilon, private.delta, confidence=confidence)


def _stacked(first: Any, second: Any) -> Any:
    import pandas as pd

    return pd.concat([first, second], ignore_index=True)


def _mislabelled(X: Any, y: Array, classes: Any, n: int, rng: Any) -> tuple[Any, Array]:
    """Return copies of records, each with a label that is not its own."""
    rows = rng.choice(len(y), size=n, replace=n > len(y))
    known = np.asarray(np.unique(y) if classes is None else classes, dtype=y.dtype)
    own = (y[rows][:, None] == known).argmax(axis=1)
    labels = known[(own + rng.integers(1, len(known), size=n)) % len(known)]
    return as_given(as_frame(X).iloc[rows].reset_index(drop=True), X), labels


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
    return OneRun(epsilon, min(real, epsilon), real >= epsilon, m, 2 * third, right)


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
