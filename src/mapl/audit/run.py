"""An audit from draws to a verdict."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import clone

from mapl.audit.canaries import CANARIES, as_frame, as_given
from mapl.audit.fits import WholeFits, model_of, with_owner, worlds
from mapl.audit.mechanisms import MECHANISMS, Experiment
from mapl.audit.replay import Replay, Tape, taped_fit
from mapl.audit.tradeoff import Claim, Verdict, best_scores, judge
from mapl.errors import ParameterError, integer, one_of, probability


def audit_mechanism(
    name: str, *, epsilon: float, delta: float, draws: int, confidence: float
) -> tuple[Claim, Verdict]:
    """Open a mechanism for a budget, and try to refute what it claims."""
    experiment = MECHANISMS[name](epsilon, delta)
    return experiment.claim, audit(experiment, draws=draws, confidence=confidence)


def audit(experiment: Experiment, *, draws: int, confidence: float) -> Verdict:
    """Draw an experiment with its canary and without, and judge."""
    without, with_ = experiment.draw(False, draws), experiment.draw(True, draws)
    scores = best_scores(without, with_, experiment.known)
    return judge(experiment.claim, *scores, confidence=confidence)


def audit_fit(
    model: Any,
    X: Any,
    y: Any,
    *,
    X_public: Any = None,
    groups: Any = None,
    canary: str = "mislabelled",
    draws: int = 2000,
    confidence: float = 0.999,
    whole: bool = False,
    seed: int = 0,
) -> tuple[Claim, Verdict]:
    """Try to refute what a fit claims, with a canary among your own records.

    The verdict depends on private records: keep it to yourself. Nothing is charged,
    and nothing of the fits is published.

    Parameters
    ----------
    model : PrivateClassifier, or Pipeline that ends in one
        What you would fit. What stands before it in a pipeline is fitted with the
        canary and without, too.
    X, y, X_public, groups
        What you would fit it to; X is a DataFrame or an array.
    canary : {"mislabelled", "duplicate", "outlier", "memorable"}
        The record whose presence is to be noticed. It stands in front of the others,
        and belongs to nobody else.
    draws : int
        How often noise is drawn, for each of the two.
    confidence : float
        That a claim which holds is not refuted.
    whole : bool
        Whether each draw is a fit of its own, from nothing to the published model:
        slow, and finds gross faults only. Otherwise all that teachers and records say
        is computed twice, and noise alone is drawn again.
    seed : int
        Chooses the record that the canary is made of.

    Returns
    -------
    claim : Claim
        With the exact trade-off curve of the fit.
    verdict : Verdict
        What the draws say of it.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from mapl import PrivateClassifier
    >>> from mapl.audit.run import audit_fit
    >>> X, y = make_classification(600, 4, random_state=0)
    >>> model = PrivateClassifier(epsilon=4, classes=[0, 1], random_state=0)
    >>> claim, verdict = audit_fit(
    ...     model, X[:300], y[:300], X_public=X[300:], draws=200, confidence=0.99
    ... )
    >>> verdict.refuted, round(verdict.claimed) == 4
    (False, True)
    """
    one_of(*CANARIES, canary=canary)
    integer(draws=draws, at_least=20)
    probability(confidence=confidence)
    y = np.asarray(y)
    classes = (
        np.unique(y) if model_of(model).classes is None else model_of(model).classes
    )
    if len(classes) < 2 or len(np.unique(y)) < 2:
        raise ParameterError("An audit needs records of two labels or more.")
    rng = np.random.default_rng(seed)
    row, label = CANARIES[canary](as_frame(X), y, list(classes), rng)
    row = as_given(row, X)
    more = {"X_public": X_public, "groups": groups}
    experiment: Experiment
    if whole:
        experiment = WholeFits(model, X, y, row, label, **more)
    else:
        experiment = _replay(model, X, y, row, label, **more)
    return experiment.claim, audit(experiment, draws=draws, confidence=confidence)


def _replay(
    model: Any, X: Any, y: Any, row: Any, label: Any, *, X_public: Any, groups: Any
) -> Replay:
    """Run a fit twice, without the canary and with it, at the same questions."""
    private = model_of(model)
    tapes: list[Tape] = []
    for records, labels in worlds(model, X, y, row, label):
        more = with_owner({"groups": groups}, len(labels))
        pool = X_public
        if private is not model:
            before = clone(model[:-1]).fit(records, labels)
            records = before.transform(records)
            pool = None if pool is None else before.transform(pool)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first = tapes[0] if tapes else None
            tape, setting = taped_fit(
                private, records, labels, first, X_public=pool, **more
            )
        tapes.append(tape)
    return Replay(tapes[0], tapes[1], setting, float(private.delta))
