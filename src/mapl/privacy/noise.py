"""Exact discrete Laplace and discrete Gaussian noise, vectorised.

Every decision is a comparison of integers: uniform random bits against the binary
digits of a probability, which are computed lazily and to as many places as the
comparison needs. No floating-point number takes part, so the samples follow the
stated law exactly, given perfect random bits.

The ladder, each rung exact if the one below is:

    digits of exp(-x) and 1/(1 + exp(x))  ->  bernoulli  ->  geometric
        ->  discrete Laplace  ->  discrete Gaussian

Proofs: docs/proofs/discrete_laplace.md, docs/proofs/discrete_gaussian.md.
"""

import os
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache, partial
from math import prod
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from mapl import errors
from mapl.arrays import Bools, Ints

Digits = Callable[[int], int]

_BLOCK = 1 << 15  # samples drawn at a time: a block's arrays stay in cache


class Source(Protocol):
    """Where random bits come from."""

    @property
    def private(self) -> bool:
        """Whether noise made of these bits protects anyone."""

    def draw(self, size: int) -> bytes:
        """Return ``size`` uniform, independent bytes."""


class SystemSource:
    """The operating system's random source, expanded by AES-256 in counter mode.

    Few bytes come from the system directly. For many, each call takes a fresh
    256-bit key from the system and expands it, so the guarantee is computational:
    it holds against an attacker who cannot distinguish AES from random bits. No state
    is kept between calls, so a fork or a thread can never repeat a stream.
    """

    private = True

    def draw(self, size: int) -> bytes:
        """Return ``size`` bytes nobody can predict."""
        if size <= 256:
            return os.urandom(size)
        # The key serves for this call only, so a fixed counter start is safe.
        cipher = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(bytes(16)))
        return cipher.encryptor().update(bytes(size))


class SeededSource:
    """Repeatable bits for tests. Whatever is made with them is **not private**.

    Events of mechanisms that use it are marked, and cost infinite epsilon.
    """

    private = False

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(seed))

    def draw(self, size: int) -> bytes:
        """Return the next ``size`` bytes of the seeded stream."""
        return self._generator.bytes(size)


SYSTEM = SystemSource()


def discrete_laplace(
    scale: int | Fraction, size: int | tuple[int, ...], *, source: Source = SYSTEM
) -> Ints:
    r"""Draw integers with :math:`P(x) \propto e^{-|x|/scale}`.

    Parameters
    ----------
    scale : int or Fraction
        Between 1/1000000 and 10**15. A float is refused.
    size : int or tuple of int
        How many, or the shape of the result.
    source : Source
        System randomness unless a test says otherwise.

    Returns
    -------
    ndarray of int64

    Notes
    -----
    The difference of two independent geometric variables.

    Guarantee: exact, given perfect random bits.
    Proof: docs/proofs/discrete_laplace.md

    Examples
    --------
    >>> from fractions import Fraction
    >>> from mapl.privacy.noise import discrete_laplace
    >>> discrete_laplace(Fraction(5, 2), size=3).dtype
    dtype('int64')
    """
    exact = errors.scale(scale=scale)
    shape = _shape(size)
    return _in_blocks(partial(_laplace_block, exact, source=source), shape)


def discrete_gaussian(
    sigma: int | Fraction, size: int | tuple[int, ...], *, source: Source = SYSTEM
) -> Ints:
    r"""Draw integers with :math:`P(x) \propto e^{-x^2/(2 sigma^2)}`.

    Parameters
    ----------
    sigma : int or Fraction
        Between 1/1000000 and 10**15. A float is refused. (The standard deviation
        of the result is a little less when sigma is below about 1/2.)
    size : int or tuple of int
        How many, or the shape of the result.
    source : Source
        System randomness unless a test says otherwise.

    Returns
    -------
    ndarray of int64

    Notes
    -----
    Rejection from the discrete Laplace, after Canonne, Kamath and Steinke [1]_.

    Guarantee: exact, given perfect random bits.
    Proof: docs/proofs/discrete_gaussian.md

    References
    ----------
    .. [1] C. Canonne, G. Kamath, T. Steinke, "The Discrete Gaussian for
       Differential Privacy", NeurIPS 2020.

    Examples
    --------
    >>> from mapl.privacy.noise import discrete_gaussian
    >>> discrete_gaussian(40, size=(2, 3)).shape
    (2, 3)
    """
    exact = errors.scale(sigma=sigma)
    shape = _shape(size)
    return _in_blocks(partial(_gaussian_block, exact, source=source), shape)


def _shape(size: int | tuple[int, ...]) -> tuple[int, ...]:
    sizes = size if isinstance(size, tuple) else (size,)
    return tuple(errors.integer(size=n, at_least=0) for n in sizes)


def _in_blocks(block: Callable[[int], Ints], shape: tuple[int, ...]) -> Ints:
    """Fill an array of ``shape`` with calls to ``block``."""
    out = np.empty(prod(shape), dtype=np.int64)
    for start in range(0, out.size, _BLOCK):
        out[start : start + _BLOCK] = block(min(_BLOCK, out.size - start))
    return out.reshape(shape)


def _laplace_block(scale: Fraction, size: int, *, source: Source) -> Ints:
    return _geometric(scale, size, source) - _geometric(scale, size, source)


def _geometric(scale: Fraction, size: int, source: Source) -> Ints:
    """Draw G with P(G >= g) = exp(-g/scale): low binary digits, then a unary rest.

    The digits of G are independent, digit i being 1 with probability
    1/(1 + exp(2^i/scale)), and independent of floor(G / 2^n_digits), which is
    geometric again. n_digits makes that rest almost always 0.
    """
    n_digits = int(11 * scale).bit_length()
    total = np.zeros(size, dtype=np.int64)
    for i in range(n_digits):
        digits = partial(_logistic_digits, Fraction(2**i) / scale)
        total |= _bernoulli(digits, size, source).astype(np.int64) << i
    going_on = np.arange(size)
    digits = partial(_exp_digits, Fraction(2**n_digits) / scale)
    while going_on.size:
        going_on = going_on[_bernoulli(digits, going_on.size, source)]
        total[going_on] += 2**n_digits
    return total


def _gaussian_block(sigma: Fraction, size: int, *, source: Source) -> Ints:
    """Accept a Laplace proposal y with probability exp(-(|y| - s)^2 / (2 sigma^2)).

    With s near sigma and the proposal's scale equal to sigma^2/s this is exact for
    any rational s > 0; s is put on a grid so that the exponent is an integer
    multiple of one rational ``unit``.
    """
    grid = 1 if sigma >= 1 else 2**20
    centre = max(1, round(sigma * grid))
    scale = sigma**2 * grid / centre
    unit = 1 / (2 * sigma**2 * grid**2)
    kept: list[Ints] = []
    missing = size
    while missing > 0:
        proposal = _laplace_block(scale, missing + missing // 2 + 8, source=source)
        offset = np.abs(np.abs(proposal) * grid - centre)
        accepted = proposal[_bernoulli_exp_square(offset, unit, source)]
        kept.append(accepted[:missing])
        missing -= kept[-1].size
    return np.concatenate(kept)


def _bernoulli_exp_square(root: Ints, unit: Fraction, source: Source) -> Bools:
    """Draw Bernoulli(exp(-root^2 * unit)) for 0 <= root < 2^62, without overflow."""
    high, low = root >> 31, root & (2**31 - 1)
    hits = _bernoulli_exp(low * low, unit, source)
    if high.any():
        hits &= _bernoulli_exp(high * low, unit * 2**32, source)
        hits &= _bernoulli_exp(high * high, unit * 2**62, source)
    return hits


def _bernoulli_exp(multiple: Ints, unit: Fraction, source: Source) -> Bools:
    """Draw Bernoulli(exp(-multiple * unit)) for each integer multiple >= 0.

    exp(-n unit) is the product of exp(-2^i unit) over the binary digits i of n:
    all of these coins must come up.
    """
    hits = np.ones(multiple.size, dtype=np.bool_)
    alive = np.arange(multiple.size)
    left = multiple
    for i in reversed(range(int(multiple.max(initial=0)).bit_length())):
        tossed = np.flatnonzero((left >> i) & 1)
        digits = partial(_exp_digits, unit * 2**i)
        failed = tossed[~_bernoulli(digits, tossed.size, source)]
        hits[alive[failed]] = False
        keep = np.ones(alive.size, dtype=np.bool_)
        keep[failed] = False
        alive, left = alive[keep], left[keep]
    return hits


def _bernoulli(digits: Digits, size: int, source: Source) -> Bools:
    """Draw Bernoulli(p), where ``digits(n)`` is floor(2^n p): hit iff uniform < p.

    Sixteen bits decide all but one comparison in 65536.
    """
    uniform = np.frombuffer(source.draw(2 * size), dtype="<u2")
    first = digits(16)
    hits = uniform < first
    for tie in np.flatnonzero(uniform == first):
        hits[tie] = _below(digits, source)
    return hits


def _below(digits: Digits, source: Source) -> bool:
    """Decide uniform < p when their first 16 bits agree."""
    n = 16
    while True:
        n += 64
        uniform = int.from_bytes(source.draw(8), "little")
        target = digits(n) & (2**64 - 1)
        if uniform != target:
            return uniform < target


@lru_cache(maxsize=4096)
def _exp_digits(x: Fraction, n: int) -> int:
    """Return floor(2^n exp(-x)) for rational x > 0."""
    return _floor_digits(partial(_enclose_exp, x), n)


@lru_cache(maxsize=4096)
def _logistic_digits(x: Fraction, n: int) -> int:
    """Return floor(2^n / (1 + exp(x))) for rational x > 0."""
    return _floor_digits(partial(_enclose_logistic, x), n)


Enclosure = Callable[[Context, Context], tuple[Decimal, Decimal]]


def _floor_digits(enclose: Enclosure, n: int) -> int:
    """Narrow an enclosure of an irrational p until floor(2^n p) is certain."""
    precision = 20 + n // 3
    while True:
        down, up = (
            Context(precision, rounding, Emin=MIN_EMIN, Emax=MAX_EMAX)
            for rounding in (ROUND_FLOOR, ROUND_CEILING)
        )
        low, high = enclose(down, up)
        power = Decimal(2**n)
        floors = {int(down.multiply(low, power)), int(up.multiply(high, power))}
        if len(floors) == 1:
            return floors.pop()
        precision *= 2


def _enclose_exp(x: Fraction, down: Context, up: Context) -> tuple[Decimal, Decimal]:
    """Enclose exp(-x): Decimal's exp is within half a unit in the last place."""
    top, bottom = Decimal(-x.numerator), Decimal(x.denominator)
    low = down.next_minus(down.exp(down.divide(top, bottom)))
    high = up.next_plus(up.exp(up.divide(top, bottom)))
    return max(low, Decimal(0)), high


def _enclose_logistic(
    x: Fraction, down: Context, up: Context
) -> tuple[Decimal, Decimal]:
    """Enclose 1/(1 + exp(x)) = e/(1 + e) with e = exp(-x), increasing in e."""
    low, high = _enclose_exp(x, down, up)
    one = Decimal(1)
    return down.divide(low, up.add(one, low)), up.divide(high, down.add(one, high))
