"""Newton's method for one chunk: softmax regression and the squared hinge loss."""

import math
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.linalg import blas, lapack

from mapl.arrays import Ints, Reals

_MAX_ITER = 200
_DECREMENT = 3e-6  # of Newton's method, as part of the loss, before its last step
_KEEP_FACTOR = 0.7  # a Hessian serves on while the decrement falls by this
_SHORTEST = 1e-6  # step that is tried
_memory = threading.local()


def softmax_newton(
    rows: Reals, codes: Ints, k: int, *, penalty: float, intercept: bool
) -> tuple[Reals, Reals]:
    """Minimise the log loss of softmax plus penalty / 2 times the squared weights.

    Gradients are in double precision. The Hessian only sets the direction, so
    single precision is enough, and an old one, corrected by the gradients since, is
    kept as long as the decrement falls quickly.
    """
    if not len(rows) and not intercept:
        return np.zeros((k, 0)), np.zeros(k)
    weights = np.full(len(rows), penalty)
    if intercept:
        rows = np.vstack((rows, np.ones(len(codes))))
        weights = np.append(weights, 1e-10)
    m, r = k - 1, len(rows)
    basis = _contrasts(k)[0]
    curvature = _Curvature(rows, weights, k, np.float32)
    at, records = np.zeros((m, r)), np.arange(len(codes))
    target = basis.T[:, codes]

    def measured(point: Reals) -> tuple[float, Reals]:
        scores = basis @ (point @ rows)
        scores = (scores - scores.max(axis=0)).astype(curvature.kind)
        shares = np.exp(scores)
        total = shares.sum(axis=0)
        loss = (np.log(total) - scores[codes, records]).sum(dtype=np.float64)
        return float(loss + (weights * point * point).sum() / 2), shares / total

    loss, shares = measured(at)
    before = np.inf  # the last decrement with this Hessian; 0 asks for a new one
    for _ in range(_MAX_ITER):
        gradient = ((basis.T @ shares - target) @ rows.T + weights * at).ravel()
        if not before:
            curvature.factor(shares)
        step = curvature.solve(at.ravel(), gradient)
        decrement = float(gradient @ step)
        direction = step.reshape(m, r)
        if 0 <= decrement < _DECREMENT * loss:
            at = at - direction
            break
        length, lost, new_shares = _backtrack(measured, at, direction, loss, decrement)
        if lost < loss:
            at, loss, shares = at - length * direction, lost, new_shares
            slow = before > 0 and decrement > _KEEP_FACTOR * before
            before = 0.0 if length < 1 or slow else decrement
        elif curvature.kind is np.float32:  # no descent in single precision
            curvature = _Curvature(rows, weights, k, np.float64)
            loss, shares = measured(at)
            before = 0.0
        else:
            break
    scores = basis @ at
    return (scores[:, :-1], scores[:, -1]) if intercept else (scores, np.zeros(k))


def _backtrack(
    measured: Callable[[Reals], tuple[float, Reals]],
    at: Reals,
    direction: Reals,
    loss: float,
    decrement: float,
) -> tuple[float, float, Reals]:
    """Halve a step until the loss falls enough, or it is too short.

    Return its length and what it gives, which may be worse.
    """
    length, lost = 2.0, np.inf
    # "not <=", so that NaN counts as worse and one step at least is measured.
    while not lost <= loss - 1e-4 * length * decrement and length > _SHORTEST:
        length /= 2
        lost, shares = measured(at - length * direction)
    return length, lost, shares


class _Curvature:
    """The Hessian of the penalised log loss, in features of unit size.

    It starts as that of even shares: one small matrix for all contrasts. Between two
    factorisations the gradients correct it, as in L-BFGS.
    """

    def __init__(self, rows: Reals, weights: Reals, k: int, kind: Any) -> None:
        self.kind = kind
        basis, self._a, self._b, products = _contrasts(k)
        self._basis, self._products = basis.astype(kind), products.astype(kind)
        self._where = _pair_positions(len(rows), k - 1)
        size = np.sqrt((rows * rows).mean(axis=1))
        size[size == 0] = 1.0
        small = (rows / size[:, None]).astype(kind)
        self._pairs = _row_products(small)
        self._size = np.tile(size, k - 1)
        self._ridge = np.tile(weights / size**2, k - 1).astype(kind)
        single = kind is np.float32
        self._potrf = lapack.spotrf if single else lapack.dpotrf
        self._potrs = lapack.spotrs if single else lapack.dpotrs
        self._trsv = blas.strsv if single else blas.dtrsv
        even = small @ small.T / kind(k)
        even.flat[:: len(even) + 1] += (weights / size**2).astype(kind)
        self._factor, self._failed = self._potrf(even, lower=1)
        self._shape = k - 1, len(rows)
        self._last: tuple[Reals, Reals] | None = None
        self._seen: list[tuple[Reals, Reals, float]] = []

    def factor(self, shares: Reals) -> None:
        """Factorise the Hessian at these class shares."""
        shares = shares.astype(self.kind)
        inner = self._basis.T @ shares
        curved = self._products @ shares - inner[self._a] * inner[self._b]
        full = _scratch("full", self._where.shape, self.kind)
        np.take(curved @ self._pairs.T, self._where, out=full, mode="clip")
        full.flat[:: len(full) + 1] += self._ridge
        self._factor, self._failed = self._potrf(full.T, lower=1, overwrite_a=1)
        self._last, self._seen = None, []

    def solve(self, at: Reals, gradient: Reals) -> Reals:
        """Return the step to subtract; NaN where the Hessian has no factor.

        Points and gradients of successive calls correct the next step, as in L-BFGS.
        Both are kept, not copied: do not change them in place.
        """
        if self._last is not None:
            by, turn = at - self._last[0], gradient - self._last[1]
            if (along := float(by @ turn)) > 0:
                self._seen.append((by, turn, along))
        self._last = at, gradient
        pulls: list[float] = []
        for moved, turned, along in reversed(self._seen):
            pulls.append(float(moved @ gradient) / along)
            gradient = gradient - pulls[-1] * turned
        step = self._plain(gradient)
        for moved, turned, along in self._seen:
            step = step + (pulls.pop() - float(turned @ step) / along) * moved
        return step

    def _plain(self, gradient: Reals) -> Reals:
        """Solve with the factor alone; NaN if there is none."""
        if self._failed:
            return np.full_like(gradient, np.nan)
        scaled = (gradient / self._size).astype(self.kind)
        if len(self._factor) < len(scaled):
            step, _ = self._potrs(self._factor, scaled.reshape(self._shape).T, lower=1)
            step = step.T.ravel()
        else:
            half = self._trsv(self._factor, scaled, lower=1)  # twice as fast as potrs
            step = self._trsv(self._factor, half, lower=1, trans=1)
        return np.asarray(step / self._size, dtype=np.float64)


@lru_cache(maxsize=32)
def _contrasts(k: int) -> tuple[Reals, Ints, Ints, Reals]:
    """A basis of the scores of k classes up to a constant, the pairs of its members,
    and their products.
    """
    start = np.hstack((np.ones((k, 1)), np.eye(k)[:, : k - 1]))
    basis = np.linalg.qr(start)[0][:, 1:]
    a, b = np.tril_indices(k - 1)
    return basis, a, b, (basis[:, a] * basis[:, b]).T


@lru_cache(maxsize=8)
def _pair_positions(r: int, m: int) -> Ints:
    """Where in the Hessian the product of each pair of m contrasts with each pair of r
    features goes.
    """

    def numbered(size: int) -> Ints:
        number = np.empty((size, size), dtype=np.int64)
        a, b = np.tril_indices(size)
        number[a, b] = number[b, a] = np.arange(len(a))
        return number

    n_pairs = r * (r + 1) // 2
    where = numbered(m)[:, None, :, None] * n_pairs + numbered(r)[None, :, None]
    return where.reshape(m * r, m * r)


def _row_products(rows: Reals) -> Reals:
    """The products of each row with those up to it."""
    r, n = rows.shape
    out, start = _scratch("pairs", (r * (r + 1) // 2, n), rows.dtype), 0
    for i in range(r):
        np.multiply(rows[: i + 1], rows[i], out=out[start : start + i + 1])
        start += i + 1
    return out


def _scratch(name: str, shape: tuple[int, ...], kind: Any) -> Reals:
    """Return memory that is reused: allocating it takes longer than using it."""
    kept: dict[Any, Reals] = _memory.__dict__.setdefault("kept", {})
    key, size = (name, kind), math.prod(shape)
    if key not in kept or kept[key].size < size:
        kept[key] = np.empty(size, dtype=kind)
    return kept[key][:size].reshape(shape)


def hinge_newton(rows: Reals, signs: Reals, weight: float) -> Reals:
    """Minimise half the squared weights plus weight times the squared hinge losses."""
    at, scores = np.zeros(len(rows)), np.zeros(len(signs))

    def measured(point: Reals, margin: Reals) -> float:
        short = np.maximum(0.0, 1.0 - signs * margin)
        return float(point @ point / 2 + weight * (short @ short))

    loss = measured(at, scores)
    for _ in range(_MAX_ITER):
        short = np.maximum(0.0, 1.0 - signs * scores)
        gradient = at - 2 * weight * (rows @ (signs * short))
        active = rows[:, short > 0]
        hessian = 2 * weight * (active @ active.T)
        hessian.flat[:: len(hessian) + 1] += 1.0
        step = solve_positive(hessian, gradient)
        decrement = float(gradient @ step)
        if decrement < 1e-9 * len(signs):
            return np.asarray(at - step)
        length, along, worse = 2.0, step @ rows, True
        while worse and length > _SHORTEST:
            length /= 2
            new = at - length * step, scores - length * along
            lost = measured(*new)
            worse = lost > loss - 1e-4 * length * decrement
        (at, scores), loss = new, lost
    return at


def solve_positive(matrix: Reals, right: Reals) -> Reals:
    """Solve a system with a positive definite matrix."""
    _, solution, _ = lapack.dposv(matrix, right, lower=1)
    return np.asarray(solution)
