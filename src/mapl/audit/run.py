"""An audit from draws to a verdict."""

from __future__ import annotations

from mapl.audit.mechanisms import MECHANISMS, Experiment
from mapl.audit.tradeoff import Claim, Verdict, best_scores, judge


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
