"""Audits: true mechanisms stand, planted bugs are refuted."""

import json
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import norm

from mapl.audit.mechanisms import MECHANISMS
from mapl.audit.run import audit_mechanism
from mapl.audit.tradeoff import Claim, best_scores, judge, learned_score
from mapl.cli import main
from mapl.privacy import charged_dissent, moments, noise, noisy_counts, sparse_vector
from mapl.privacy.charged_dissent import ChargedDissent
from mapl.privacy.events import GaussianEvent
from mapl.privacy.noise import SeededSource

GAUSSIAN = Claim((GaussianEvent(sigma=Fraction(4), steps=1),), 1e-5)


def verdict(name: str, draws: int, epsilon: float = 4.0) -> Any:
    options = {"delta": 1e-5, "confidence": 0.999, "draws": draws}
    return audit_mechanism(name, epsilon=epsilon, **options)[1]  # type: ignore[arg-type]


# What is claimed ------------------------------------------------------------------


def test_a_gaussian_claim_allows_what_theory_says() -> None:
    rates = np.array([0.01, 0.1, 0.3, 0.5, 0.9])
    exact = norm.cdf(norm.ppf(rates) + 1 / 4)
    allowed = GAUSSIAN.most_power(rates)
    assert np.allclose(allowed, exact, atol=2e-3)  # the noise is of integers


def test_a_weakened_claim_allows_less() -> None:
    for make in MECHANISMS.values():
        claim = make(1.0, 1e-5).claim
        assert claim.weakened(0.5).epsilon < claim.epsilon < math.inf
        less = claim.weakened(0.5).most_power([0.1, 0.5])
        assert (less < claim.most_power([0.1, 0.5])).all()


@pytest.mark.parametrize("sigma", [1.0, 4.0])
def test_judging_is_calibrated(sigma: float) -> None:
    """Scores of the claimed Gaussian are refuted seldom, those of less noise always;
    what is real is never more than what is there.
    """
    rng = np.random.default_rng(0)
    refuted = 0
    for _ in range(20):
        without, with_ = rng.normal(0, sigma, 1000), rng.normal(1, sigma, 1000)
        found = judge(GAUSSIAN, without, with_, confidence=0.9)
        refuted += found.refuted
        assert found.real <= found.claimed
    assert refuted == 20 if sigma == 1 else refuted <= 6


def test_scores_are_learned_where_none_is_known() -> None:
    rng = np.random.default_rng(0)
    without = rng.normal(size=(2000, 5)) * [1, 1, 9, 1, 1]
    with_ = rng.normal(size=(2000, 5)) * [1, 1, 9, 1, 1] + [0, 2, 0, 0, 0]
    weights = learned_score(without, with_)
    assert abs(weights[1]) > 5 * np.abs(np.delete(weights, 1)).max()
    out, in_ = best_scores(without, with_, [np.ones(5)])
    assert in_.mean() - out.mean() > 1.5 * out.std()
    same = best_scores(np.zeros((8, 2)), np.zeros((8, 2)), [])
    assert not same[0].any()
    assert judge(GAUSSIAN, *same, confidence=0.9).real == 0


def test_a_test_that_never_fails_shows_everything() -> None:
    found = judge(GAUSSIAN, np.zeros(5000), np.ones(5000), confidence=0.999)
    assert found.refuted
    assert found.real == found.claimed
    assert found.sentence().startswith("REFUTED")


# Mechanisms as they are -----------------------------------------------------------


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_true_mechanism_is_not_refuted(name: str) -> None:
    found = verdict(name, 200)
    assert not found.refuted
    assert found.real < found.claimed
    said = "at least" if found.real else "so many draws show nothing"
    assert f"not refuted: {said}" in found.sentence()


def test_much_of_a_claim_is_shown() -> None:
    assert MECHANISMS["stable-release"](1.0, 1e-5).once(True).shape == (1,)
    assert verdict("stable-release", 20_000, 1.0).real > 0.8
    assert verdict("stable-release", 20_000).real > 3.5
    assert verdict("count", 1500).real > 2


# Planted bugs ---------------------------------------------------------------------


def half_noise(patch: pytest.MonkeyPatch) -> None:
    true = noise.discrete_gaussian

    def weak(sigma: Fraction, shape: Any, **more: Any) -> Any:
        return true(sigma / 2, shape, **more)

    for module in (noisy_counts, moments):
        patch.setattr(module, "discrete_gaussian", weak)


def no_silence(patch: pytest.MonkeyPatch) -> None:
    charge = ChargedDissent._charge

    def free(self: ChargedDissent, *args: Any) -> Any:
        self._left = np.full(self.n_teachers, 10**6, dtype=np.int64)
        return charge(self, *args)

    patch.setattr(ChargedDissent, "_charge", free)


def half_the_steps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(charged_dissent, "_dissent_steps", lambda dissents, *_: dissents)


def noise_reused(patch: pytest.MonkeyPatch) -> None:
    true = noise.discrete_gaussian

    def once(sigma: Fraction, shape: Any, **more: Any) -> Any:
        return np.broadcast_to(true(sigma, (1,), **more), shape)

    for module in (noisy_counts, moments):
        patch.setattr(module, "discrete_gaussian", once)


def a_seed(patch: pytest.MonkeyPatch) -> None:
    true = noise.discrete_gaussian

    def seeded(sigma: Fraction, shape: Any, **_: Any) -> Any:
        return true(sigma, shape, source=SeededSource(0))

    for module in (noisy_counts, moments):
        patch.setattr(module, "discrete_gaussian", seeded)


def a_bound_that_is_too_long(patch: pytest.MonkeyPatch) -> None:
    """Contributions that are shortened to twice what they may be."""
    shorten = moments._shortened

    def longer(lengths: Any, residuals: Any, squared_length: Any) -> Any:
        return shorten(lengths, residuals, 4 * squared_length)

    patch.setattr(moments, "_shortened", longer)


def a_float_bound(patch: pytest.MonkeyPatch) -> None:
    """Lengths in half precision, where the canary's is infinite."""

    def shortened(lengths: Any, residuals: Any, squared_length: Any) -> Any:
        with np.errstate(over="ignore"):
            own = (residuals**2).sum(axis=1).astype(np.float16)
            factor = np.sqrt(squared_length / (lengths * own.astype(float)))
        factor = np.where(factor > 0, np.minimum(factor, 1), 1)  # of a zero vector
        return np.trunc(residuals * factor[:, None])

    patch.setattr(moments, "_shortened", shortened)


def one_dissent_more(patch: pytest.MonkeyPatch) -> None:
    make = ChargedDissent.__init__

    def off_by_one(self: ChargedDissent, **kwargs: Any) -> None:
        make(self, **kwargs)
        self._left += 1

    patch.setattr(ChargedDissent, "__init__", off_by_one)


def hardly_any_noise(patch: pytest.MonkeyPatch) -> None:
    true = noise.discrete_laplace

    def weak(scale: Any, *args: Any, **more: Any) -> Any:
        return true(scale / 100, *args, **more)

    patch.setattr(sparse_vector, "discrete_laplace", weak)


BUGS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, int]] = [
    (half_noise, "moments", 250),
    (half_noise, "dissent", 250),
    (half_noise, "count", 250),
    (no_silence, "dissent", 400),
    (half_the_steps, "dissent", 1000),
    (noise_reused, "noisy-max", 250),
    (a_seed, "count", 250),
    (a_bound_that_is_too_long, "moments", 250),
    (a_float_bound, "moments", 250),
    (one_dissent_more, "dissent", 1000),
    (half_noise, "sketch", 250),
    (hardly_any_noise, "sparse-vector", 800),
]


@pytest.fixture(params=BUGS, ids=lambda bug: f"{bug[0].__name__}-{bug[1]}")
def bug(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, int]]:
    plant, name, draws = request.param
    plant(monkeypatch)
    return name, draws


def test_a_planted_bug_is_refuted(bug: tuple[str, int]) -> None:
    assert verdict(*bug, epsilon=4.0 if bug[0] == "sparse-vector" else 8.0).refuted


# The command ----------------------------------------------------------------------


def run(*args: Any) -> Any:
    return CliRunner().invoke(main, ["audit", *map(str, args)])


def test_the_command_says_and_draws_it(tmp_path: Path) -> None:
    options = ("--mechanism", "stable-release", "--draws", 2000)
    done = run(*options, "--plot", tmp_path / "a.png")
    assert done.exit_code == 0, done.stderr
    assert "stable-release not refuted: at least 0." in done.stdout
    assert "cannot prove privacy" in done.stderr
    assert (tmp_path / "a.png").stat().st_size > 5000
    shown = json.loads(run(*options, "--json").stdout)
    assert shown["confidence"] == 0.999
    assert shown["audits"][0]["draws"] == 4000
    every = run("--mechanism", "all", "--draws", 100, "--plot", tmp_path / "b.svg")
    assert every.exit_code == 0
    assert len(every.stdout.splitlines()) == len(MECHANISMS)


def test_a_refuted_claim_has_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    a_seed(monkeypatch)
    done = run("--mechanism", "count", "--draws", 400)
    assert done.exit_code == 5
    assert "REFUTED" in done.stdout


@pytest.mark.parametrize(
    "options",
    [
        ("--mechanism", "magic"),
        ("--draws", 7),
        ("--epsilon", 0),
        ("--delta", 2),
        ("--confidence", 1),
        ("--plot", "x.gif"),
    ],
)
def test_bad_options_are_refused(options: tuple[Any, ...]) -> None:
    assert run(*options).exit_code == 2
