"""Verdicts beside those of others, and how often a claim that holds is refuted."""

import os
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom

from mapl.audit.fits import chance_of
from mapl.audit.mechanisms import MECHANISMS
from mapl.audit.run import audit
from mapl.audit.tradeoff import Claim, judge
from mapl.privacy import accounting
from mapl.privacy.events import GaussianEvent

REPETITIONS, CONFIDENCE = 200, 0.9
QUICK = {"stable-release": 4000, "count": 60}
DRAWS = QUICK | dict.fromkeys(MECHANISMS.keys() - QUICK.keys(), 60)
if not os.environ.get("MAPL_FUZZ"):  # make stress tries all, in a quarter of an hour
    DRAWS = QUICK


@pytest.mark.parametrize("name", DRAWS)
def test_claims_that_hold_are_refuted_no_more_often_than_said(name: str) -> None:
    """With this bound, a right confidence fails here once in 10^6 runs."""
    experiment = MECHANISMS[name](1.0, 1e-5)
    found = [
        audit(experiment, draws=DRAWS[name], confidence=CONFIDENCE)
        for _ in range(REPETITIONS)
    ]
    refuted = sum(verdict.refuted for verdict in found)
    assert refuted <= binom.isf(1e-6, REPETITIONS, 1 - CONFIDENCE)


@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_jax_privacy_finds_less_and_nothing_else(sigma: float) -> None:
    auditing = pytest.importorskip("jax_privacy").auditing
    event = GaussianEvent(sigma=Fraction(sigma), steps=1)
    exact = accounting.epsilon([event], delta=1e-5)
    rng = np.random.default_rng(0)
    without, with_ = rng.normal(0, sigma, 20_000), rng.normal(1, sigma, 20_000)
    theirs = auditing.CanaryScoreAuditor(with_, without)
    found = theirs.epsilon_clopper_pearson(0.001, 1e-5, one_sided=False)
    ours = judge(Claim((event,), 1e-5), without, with_, confidence=0.999)
    assert found < ours.real < exact
    assert not ours.refuted


def test_jax_privacy_has_the_same_chances_of_one_run() -> None:
    auditing = pytest.importorskip("jax_privacy").auditing
    for right in (30, 45, 60):
        for epsilon in (0.0, 1.0, 4.0):
            for delta in (1e-9, 1e-5, 1e-2):
                args = 90, 60, right, epsilon, delta
                assert chance_of(*args) == pytest.approx(
                    auditing._one_run_p_value(*args)
                )
