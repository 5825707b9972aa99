import math
import multiprocessing
import os
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapl import noise
from mapl.errors import ParameterError
from mapl.privacy.noise import (
    SeededSource,
    SystemSource,
    discrete_gaussian,
    discrete_laplace,
)

SAMPLERS = [discrete_laplace, discrete_gaussian]
each_sampler = pytest.mark.parametrize("sampler", SAMPLERS)


def masses(sampler: Callable[..., Any], scale: Fraction, reach: int) -> Any:
    """The law by its definition, on -reach..reach."""
    x = np.arange(-reach, reach + 1)
    s = float(scale)
    exponent = np.abs(x) / s if sampler is discrete_laplace else x**2 / (2 * s**2)
    weight = np.exp(-exponent)
    return weight / weight.sum()


def chi_square(sample: npt.NDArray[np.int64], p: Any) -> float:
    """The upper tail of Pearson's statistic; cells with few expected are merged."""
    from scipy.stats import chi2

    reach = p.size // 2
    counts = np.bincount(np.clip(sample, -reach, reach) + reach, minlength=p.size)
    enough = p * sample.size >= 20
    observed = np.append(counts[enough], counts[~enough].sum())
    expected = np.append(p[enough], p[~enough].sum()) * sample.size
    cells = expected > 1e-9
    if cells.sum() < 2:
        return 1.0
    statistic = ((observed - expected)[cells] ** 2 / expected[cells]).sum()
    return float(chi2.sf(statistic, cells.sum() - 1))


# Seeded, so it either always passes or never; the chance that a right sampler fails
# for the seed that was written down is 1e-4 a case. A planted bug gives less than 1e-9.
FALSE_ALARM = 1e-4


@pytest.mark.slow
@each_sampler
@pytest.mark.parametrize(
    "scale", [Fraction(1, 1000), Fraction(1, 3), Fraction(1), Fraction(7, 2), 40, 1000]
)
def test_samples_follow_the_exact_law(sampler: Any, scale: Any) -> None:
    sample = sampler(scale, 400_000, source=SeededSource(1))
    p = masses(sampler, scale, math.ceil(16 * scale) + 8)
    assert chi_square(sample, p) > FALSE_ALARM


@pytest.mark.slow
@each_sampler
@pytest.mark.parametrize("factor", [Fraction(1, 2), Fraction(96, 100)])
def test_the_chi_square_check_catches_too_little_noise(
    sampler: Any, factor: Fraction
) -> None:
    sample = sampler(40 * factor, 400_000, source=SeededSource(1))
    assert chi_square(sample, masses(sampler, Fraction(40), 700)) < 1e-9


@pytest.mark.slow
@each_sampler
@pytest.mark.parametrize("scale", [10**6, 10**9])
def test_large_scales_have_the_right_quantiles(sampler: Any, scale: int) -> None:
    """Kolmogorov's statistic of 200,000 draws exceeds 2.2/sqrt(n) once in 10^4."""
    from scipy.stats import laplace, norm

    law = laplace if sampler is discrete_laplace else norm
    sample = np.sort(sampler(scale, 200_000, source=SeededSource(2)))
    rank = np.arange(1, sample.size + 1) / sample.size
    gap = np.abs(law.cdf((sample + 0.5) / scale) - rank).max()
    assert gap < 2.2 / math.sqrt(sample.size)


@pytest.mark.slow
@each_sampler
def test_samples_agree_with_opendp(sampler: Any) -> None:
    """Two samples, one of each: the homogeneity statistic on the same cells."""
    import opendp.prelude as dp
    from scipy.stats import chi2_contingency

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T="i32"))
    if sampler is discrete_laplace:
        oracle = dp.m.make_laplace(domain, dp.l1_distance(T="i32"), scale=5.0)
    else:
        oracle = dp.m.make_gaussian(domain, dp.l2_distance(T="f64"), scale=5.0)
    theirs = np.array(oracle([0] * 100_000))
    ours = sampler(5, 100_000, source=SeededSource(3))
    table = [
        np.bincount(np.clip(s, -15, 15) + 15, minlength=31) for s in (ours, theirs)
    ]
    # opendp cannot be seeded: the rate of false alarms is 1e-9 a run.
    assert chi2_contingency(np.array(table) + 1).pvalue > 1e-9


# Exactness, rung by rung ----------------------------------------------------------


@given(
    x=st.fractions(min_value=Fraction(1, 10**9), max_value=3000),
    n=st.sampled_from([16, 80, 144]),
)
@settings(deadline=None)
def test_digits_are_the_floor_of_the_probability(x: Fraction, n: int) -> None:
    import mpmath

    with mpmath.workdps(1600):
        exact = mpmath.mpf(x.numerator) / x.denominator
        expected = mpmath.floor(mpmath.exp(-exact) * 2**n)
        logistic = mpmath.floor(2**n / (1 + mpmath.exp(exact)))
        assert noise._exp_digits(x, n) == int(expected)
        assert noise._logistic_digits(x, n) == int(logistic)


def test_digits_are_narrowed_until_they_are_certain() -> None:
    """An enclosure across 1/2 at first, and on one side of it with more digits."""
    from decimal import Context, Decimal

    def enclose(down: Context, up: Context) -> tuple[Decimal, Decimal]:
        tenth = Decimal(10) ** -down.prec
        return Decimal("0.5") + tenth - 10 * tenth * (down.prec < 40), Decimal("0.6")

    assert noise._floor_digits(enclose, 1) == 1


class Scripted:
    """Bits that were written down."""

    private = False

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = list(chunks)

    def draw(self, size: int) -> bytes:
        chunk = self.chunks.pop(0)
        assert len(chunk) == size
        return chunk


def test_ties_are_decided_by_further_bits() -> None:
    """P = exp(-1): below, above, and equal in 16 bits, then below and above."""
    digits = lambda n: noise._exp_digits(Fraction(1), n)  # noqa: E731
    first = digits(16)
    later = digits(80) & (2**64 - 1)
    draws = np.array([first - 1, first + 1, first, first], dtype="<u2").tobytes()
    equal, below, above = ((later + step).to_bytes(8, "little") for step in (0, -1, 1))
    last = digits(144) & (2**64 - 1)
    source = Scripted(draws, equal, (last - 1).to_bytes(8, "little"), above)
    assert noise._bernoulli(digits, 4, source).tolist() == [True, False, True, False]
    assert not source.chunks
    assert noise._below(digits, Scripted(below))


@pytest.mark.parametrize("n_bits", [1, 3])
def test_exponential_coins_have_the_product_of_their_digits(n_bits: int) -> None:
    """exp(-n u) over all n: enough draws to tell n from n + 1 (5 standard errors)."""
    n = np.repeat(np.arange(2**n_bits), 50_000)
    hits = noise._bernoulli_exp(n, Fraction(1, 3), SeededSource(4))
    for value in range(2**n_bits):
        p = math.exp(-value / 3)
        mean = hits[n == value].mean()
        assert abs(mean - p) <= 5 * math.sqrt(p * (1 - p) / 50_000)


def test_squares_beyond_62_bits_do_not_overflow() -> None:
    root = np.full(50_000, 3 * 2**31 + 5)
    exponent = 0.7
    unit = Fraction(exponent) / (3 * 2**31 + 5) ** 2
    hits = noise._bernoulli_exp_square(root, unit, SeededSource(5))
    p = math.exp(-exponent)
    assert abs(hits.mean() - p) <= 5 * math.sqrt(p * (1 - p) / 50_000)


# Behaviour ------------------------------------------------------------------------


@each_sampler
def test_shapes_and_type(sampler: Any) -> None:
    assert sampler(3, 0).shape == (0,)
    assert sampler(3, 5).shape == (5,)
    assert sampler(Fraction(5, 2), (2, 0)).shape == (2, 0)
    assert sampler(np.int64(3), (2, 3)).shape == (2, 3)
    assert sampler(3, noise._BLOCK + 1).dtype == np.int64


@each_sampler
def test_seeded_noise_repeats_and_system_noise_does_not(sampler: Any) -> None:
    assert (
        sampler(50, 100, source=SeededSource(7))
        == sampler(50, 100, source=SeededSource(7))
    ).all()
    assert (sampler(50, 100) != sampler(50, 100)).any()
    assert SystemSource.private
    assert not SeededSource.private


@each_sampler
@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (2.5, r'must be an int or a Fraction, got 2.5. Pass Fraction\("2.5"\)'),
        (math.nan, "must be an int or a Fraction, got nan"),
        ("3", "must be an int or a Fraction, got '3'"),
        (True, "must be an int or a Fraction, got True"),
        (0, r"must be >= 1/10\*\*6 and <= 10\*\*15, got 0"),
        (-1, r"must be >= 1/10\*\*6 and <= 10\*\*15, got -1"),
        (10**16, r"must be >= 1/10\*\*6 and <= 10\*\*15, got 10000000000000000"),
    ],
)
def test_bad_scales_are_refused(sampler: Any, scale: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        sampler(scale, 1)


@each_sampler
@pytest.mark.parametrize("size", [-1, 2.0, (3, -1), None])
def test_bad_sizes_are_refused(sampler: Any, size: Any) -> None:
    with pytest.raises(ParameterError, match="size must be an integer >= 0"):
        sampler(1, size)


def _draw_to(queue: Any) -> None:
    queue.put(discrete_laplace(10**9, 1000).tolist())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_draws_other_noise() -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=_draw_to, args=(queue,)) for _ in range(2)]
    for child in children:
        child.start()
    drawn = [queue.get(timeout=60) for _ in children]
    for child in children:
        child.join()
    here = discrete_laplace(10**9, 1000).tolist()
    assert drawn[0] != drawn[1]
    assert here not in drawn


def test_system_source_takes_a_fresh_key_for_each_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    urandom = os.urandom
    monkeypatch.setattr(os, "urandom", lambda n: asked.append(n) or urandom(n))
    SystemSource().draw(8)
    first, second = SystemSource().draw(10_000), SystemSource().draw(10_000)
    assert asked == [8, 32, 32]
    assert first != second
