"""An audit from draws to a verdict."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import clone

from mapl.arrays import same_numbers
from mapl.audit.canaries import CANARIES
from mapl.audit.fits import WholeFits
from mapl.audit.mechanisms import MECHANISMS, Experiment
from mapl.audit.replay import Replay, Tape, taped_fit
from mapl.audit.tradeoff import Claim, Verdict, best_scores, judge
from mapl.audit.worlds import Data, model_of
from mapl.errors import ParameterError, integer, one_of, probability
from mapl.estimator import PrivateClassifier

_LOOKED_AT = 200  # records that a pipeline's steps are compared on


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
    found = judge(experiment.claim, *scores, confidence=confidence)
    if experiment.leak:  # something is published that has no noise
        found = replace(found, refuted=True, real=found.claimed, leak=experiment.leak)
    return found


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
    data = Data.of(model, X, y, groups, X_public)
    if not whole and type(model_of(model)) is not PrivateClassifier:
        raise ParameterError(
            "A subclass of PrivateClassifier is audited by whole fits: whole=True."
        )
    without, with_, shown = data.neighbours(model, canary, seed)
    experiment: Experiment
    if whole:
        experiment = WholeFits(model, without, with_, *shown)
    else:
        experiment = _replay(model, without, with_)
    return experiment.claim, audit(experiment, draws=draws, confidence=confidence)


def _replay(model: Any, without: Data, with_: Data) -> Replay:
    """Run a fit twice, without the canary and with it, at the same replies."""
    private, leak = model_of(model), ""
    if private is not model:
        without, with_, leak = _through_pipeline(model[:-1], without, with_)
    tapes: list[Tape] = []
    for data in (without, with_):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first = tapes[0] if tapes else None
            tape, setting = taped_fit(private, data, first)
        tapes.append(tape)
    found = Replay(tapes[0], tapes[1], setting, float(private.delta))
    found.leak = leak or found.leak
    return found


def _through_pipeline(steps: Any, without: Data, with_: Data) -> tuple[Data, Data, str]:
    """Fit what stands before the classifier to both; see whether it has changed."""
    fitted = [clone(steps).fit(data.X, data.y.tolist()) for data in (without, with_)]
    first, second = (
        replace(
            data,
            X=step.transform(data.X),
            # One pool for both: what is compared are the records.
            X_public=None
            if data.X_public is None
            else fitted[0].transform(data.X_public),
        )
        for step, data in zip(fitted, (without, with_), strict=True)
    )
    looked_at = without.X[:_LOOKED_AT]
    seen = [np.asarray(step.transform(looked_at)) for step in fitted]
    same = seen[0].shape == seen[1].shape and same_numbers(*seen)
    leak = "" if same else "what stands before the classifier changed without noise"
    return first, second, leak
