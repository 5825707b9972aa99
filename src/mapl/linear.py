"""Linear teachers: scikit-learn's objectives, solved for many small chunks.

On a hundred records scikit-learn's own fit is nearly all overhead. Here the same
minimum is found by Newton's method, and a fitted model is a scikit-learn model like any
other. What a teacher becomes is, to the last bit, a function of its own records.

Asking is one matrix product for all teachers (`Stack`). Its shape is made of public
numbers, so nor do votes depend on other teachers.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import blas, lapack
from scipy.sparse import issparse
from scipy.special import expit
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import (
    LabelBinarizer,
    MaxAbsScaler,
    MinMaxScaler,
    StandardScaler,
)
from sklearn.svm import LinearSVC
from sklearn.utils.validation import validate_data

from mapl.votes import NO_VOTE

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]

_MAX_ITER = 200
_DECREMENT = 1e-5  # of Newton's method, as part of the loss, before its last step
_KEEP_FACTOR = 0.5  # a Hessian serves on while the decrement falls by this
_SHORTEST = 1e-6  # step that is tried
_CLOSE = 1e-3  # relative change of a score; the next would be the square of that
_LARGEST = 1e100  # feature
_MOST_WEIGHTS = 1000  # for which a Hessian is quicker than going without
_PAD = 8  # chunks are stacked with those of the same number of records, rounded up
_STACK_CELLS = 1 << 21  # of chunks that are solved side by side
_SCORES = 1 << 20  # computed in one go


def fits(estimator: Any) -> bool:
    """Whether `fit` finds what the estimator's own fit would look for.

    Decided by its type and parameters, never by data.
    """
    if type(estimator) is Pipeline:
        inner = estimator.memory is None and len(estimator.steps) > 1
        return inner and type(estimator[-1]) is not Pipeline and fits(estimator[-1])
    kind = type(estimator)
    if kind not in (LogisticRegression, RidgeClassifier, LinearSVC):
        return False
    given = estimator.get_params()
    wanted: dict[type, dict[str, tuple[Any, ...]]] = {
        LogisticRegression: {
            "penalty": ("l2", "deprecated"),
            "l1_ratio": (0, None),
            "dual": (False,),
            "class_weight": (None,),
            "solver": ("lbfgs", "newton-cg", "newton-cholesky", "sag", "saga"),
        },
        RidgeClassifier: {"positive": (False,), "class_weight": (None,)},
        LinearSVC: {
            "penalty": ("l2",),
            "loss": ("squared_hinge",),
            "multi_class": ("ovr",),
            "class_weight": (None,),
        },
    }
    weight = given["alpha" if kind is RidgeClassifier else "C"]
    if not isinstance(weight, Real) or not 1e-12 < float(weight) < 1e12:
        return False
    return all(given[name] in values for name, values in wanted[kind].items())


def stacks(estimator: Any, features: Any) -> bool:
    """Whether `fit_pairs` takes such a learner and such records."""
    table = isinstance(features, np.ndarray) and features.ndim == 2
    return (
        type(estimator) is LogisticRegression
        and fits(estimator)
        and table
        and features.dtype.kind in "fiub"
    )


def fit(model: Any, features: Any, labels: npt.NDArray[Any]) -> Any:
    """Fit a model that `fits`, or a pipeline that ends in one; return it.

    Transformers of a pipeline are fitted by themselves. What they make sparse is left
    to scikit-learn.
    """
    if isinstance(model, Pipeline):
        features = model[:-1].fit_transform(features, labels)
        fit(model[-1], features, labels)
        return model
    if issparse(features):
        return model.fit(features, labels)
    X = _checked(model, features)
    model.classes_, codes = np.unique(labels, return_inverse=True)
    _SOLVERS[type(model)](model, X, codes)
    return model


def _checked(model: Any, features: Any) -> Floats:
    """Return finite floats as scikit-learn would; at once, if they are that."""
    table = type(features) is np.ndarray and features.ndim == 2
    if table and features.dtype == np.float64 and np.isfinite(features).all():
        model.n_features_in_ = features.shape[1]
    else:
        features = validate_data(model, features, dtype=np.float64)
    return np.asarray(features)


def _fit_logistic(model: Any, X: Floats, codes: Ints) -> None:
    k = len(model.classes_)
    model.n_iter_ = np.ones(1, dtype=np.int32)
    if k == 2:
        for _, coef, intercept in fit_pairs(model, X, codes, [np.arange(len(X))], [1]):
            model.coef_, model.intercept_ = coef, intercept
            return
        model.fit(X, model.classes_[codes])
        return
    rows, back = _reduced(X, constants=not model.fit_intercept)
    if (k - 1) * (len(rows) + 1) > _MOST_WEIGHTS:
        model.fit(X, model.classes_[codes])
        return
    coef, intercept = _softmax_newton(
        rows, codes, k, penalty=1 / model.C, intercept=model.fit_intercept
    )
    model.coef_, model.intercept_ = back(coef), intercept


def _fit_ridge(model: Any, X: Floats, codes: Ints) -> None:
    targets = np.where(codes == np.arange(len(model.classes_))[:, None], 1.0, -1.0)
    targets = targets[1:] if len(targets) == 2 else targets
    shift = np.zeros(X.shape[1])
    offset = np.zeros(len(targets))
    if model.fit_intercept:
        shift, offset = X.mean(axis=0), targets.mean(axis=1)
    centred = (X - shift).T
    rows, back = (centred, lambda v: v) if X.shape[0] >= X.shape[1] else _by_qr(centred)
    gram = rows @ rows.T
    gram.flat[:: len(gram) + 1] += float(model.alpha)
    coef = back(_solved(gram, rows @ (targets - offset[:, None]).T).T)
    model.coef_, model.intercept_ = coef, offset - coef @ shift
    model.n_iter_ = None
    binarizer = LabelBinarizer(pos_label=1, neg_label=-1)
    model._label_binarizer = binarizer.fit(model.classes_)


def _fit_svc(model: Any, X: Floats, codes: Ints) -> None:
    rows, back = _reduced(X, constants=True)
    scale = float(model.intercept_scaling) if model.fit_intercept else 0.0
    rows = np.vstack((rows, np.full(len(X), scale)))
    against = range(len(model.classes_)) if len(model.classes_) > 2 else [1]
    signs = [np.where(codes == code, 1.0, -1.0) for code in against]
    weights = np.array([_hinge_newton(rows, sign, model.C) for sign in signs])
    model.coef_, model.intercept_ = back(weights[:, :-1]), scale * weights[:, -1]
    model.n_iter_ = 1


_SOLVERS = {
    LogisticRegression: _fit_logistic,
    RidgeClassifier: _fit_ridge,
    LinearSVC: _fit_svc,
}


# Two classes: many small chunks at once ---------------------------------------------


def fit_pairs(
    model: Any, features: Array, codes: Ints, chunks: list[Ints], second: list[int]
) -> Iterator[tuple[int, Floats, Floats]]:
    """Fit a logistic regression to each chunk, for its ``second`` class against its
    other one; yield its number, coefficients and intercept.

    Chunks are stacked with those of the same padded size, and computed side by side.
    Each keeps to itself: its padding follows from its own size, it stops by itself, and
    every operation takes one matrix after the other, so that what else is in the stack
    does not touch a bit of it. One that cannot be computed is left out.
    """
    sizes = np.array([-(-len(rows) // _PAD) * _PAD for rows in chunks])
    width = features.shape[1]
    for size in np.unique(sizes):
        alike = np.flatnonzero(sizes == size)
        step = max(1, _STACK_CELLS // int(size * (width + min(size, width))))
        for start in range(0, len(alike), step):
            some = alike[start : start + step]
            mine = [(chunks[j], second[j]) for j in some]
            coef, intercept = _Pairs(model, features, codes, mine, size).solve()
            good = np.isfinite(coef).all(axis=1) & np.isfinite(intercept)
            for j in np.flatnonzero(good):
                yield int(some[j]), coef[j : j + 1].copy(), intercept[j : j + 1].copy()


class _Pairs:
    """Newton's method on a stack of chunks with two classes each.

    With fewer records than features the weights are those of the records (the dual):
    what is solved has the smaller of the two sizes. The last weight is the intercept.
    """

    def __init__(
        self,
        model: Any,
        features: Array,
        codes: Ints,
        chunks: list[tuple[Ints, int]],
        size: int,
    ) -> None:
        self.penalty, self.intercept = 1 / model.C, bool(model.fit_intercept)
        n, d = len(chunks), features.shape[1]
        self.dual = size < d
        self.X = np.zeros((n, size, d if self.dual else d + 1))
        self.used, self.target = np.zeros((n, size)), np.zeros((n, size))
        self.fine = np.ones(n, dtype=np.bool_)
        for j, (rows, second) in enumerate(chunks):
            records = features[rows]
            # What is not finite scikit-learn refuses; here it spoils its own chunk.
            self.fine[j] = np.abs(records).max() < _LARGEST
            self.X[j, : len(rows), :d] = records if self.fine[j] else 0.0
            self.used[j, : len(rows)] = 1.0
            self.target[j, : len(rows)] = codes[rows] == second
        if self.dual:
            self.gram = self.X @ self.X.transpose(0, 2, 1)
        elif self.intercept:
            self.X[:, :, d] = self.used

    def solve(self) -> tuple[Floats, Floats]:
        """Return coefficients and intercepts."""
        n, size, width = self.X.shape
        weights = np.zeros((n, size + 1 if self.dual else width))
        scores = np.zeros((n, size))
        left = np.arange(n)  # those that have not arrived
        loss = self._loss(weights, scores, left)
        for _ in range(_MAX_ITER):
            aim, aimed = self._aim(scores[left], left)
            by, move = aim - weights[left], aimed - scores[left]
            length = np.ones((len(left), 1))
            worse = np.ones(len(left), dtype=np.bool_)
            while worse.any():
                new = weights[left] + length * by, scores[left] + length * move
                lost = self._loss(*new, left)
                worse = lost > loss[left] + 1e-9 * (1 + np.abs(loss[left]))
                worse &= length[:, 0] > _SHORTEST
                length[worse] /= 2
            weights[left], scores[left] = new
            loss[left] = lost
            left = left[~self._arrived(move * self.used[left] / (1 + np.abs(new[1])))]
            if not len(left):
                break
        weights[~self.fine] = np.nan
        if self.dual:
            return (weights[:, None, :-1] @ self.X)[:, 0], weights[:, -1]
        return weights[:, :-1], weights[:, -1]

    def _arrived(self, moves: Floats) -> npt.NDArray[np.bool_]:
        return np.asarray(np.abs(moves).max(axis=1) <= _CLOSE)

    def _loss(self, weights: Floats, scores: Floats, left: Ints) -> Floats:
        logs = np.logaddexp(0.0, scores) - self.target[left] * scores
        inner = scores - weights[:, -1:] if self.dual else weights[:, :-1]
        squared = (weights[:, :-1] * inner).sum(axis=1)
        loss = (self.used[left] * logs).sum(axis=1) + self.penalty / 2 * squared
        return np.asarray(loss)

    def _aim(self, scores: Floats, left: Ints) -> tuple[Floats, Floats]:
        """Return where a full step leads to: weights, and scores of the records."""
        used = self.used[left]
        share = expit(scores)
        curved = used * np.maximum(share * (1 - share), 1e-20)
        pull = used * (self.target[left] - share)
        if self.dual:
            return self._dual_aim(scores, curved, pull, self.gram[left])
        X = self.X if len(left) == len(self.X) else self.X[left]
        turned = X.transpose(0, 2, 1)
        hessian = (turned * curved[:, None]) @ X
        diagonal = np.einsum("ijj->ij", hessian)
        diagonal[:, :-1] += self.penalty
        diagonal[:, -1] += 0.0 if self.intercept else 1.0
        right = turned @ (curved * scores + pull)[:, :, None]
        weights = _each_solved(hessian, right)
        return weights[:, :, 0], (X @ weights)[:, :, 0]

    def _dual_aim(
        self, scores: Floats, curved: Floats, pull: Floats, gram: Floats
    ) -> tuple[Floats, Floats]:
        root = np.sqrt(curved)
        matrix = gram * (root[:, :, None] * root[:, None])
        np.einsum("ijj->ij", matrix)[:] += self.penalty
        work = root * scores + pull / np.where(root > 0, root, 1.0)
        solved = _each_solved(matrix, np.stack((work, root), axis=2))
        solved *= root[:, :, None]
        first, second = solved[:, :, 0], solved[:, :, 1]
        offset = np.zeros((len(gram), 1))
        if self.intercept:  # such that the weights of the records sum to zero
            offset = (first.sum(axis=1) / second.sum(axis=1))[:, None]
        inner = first - offset * second
        weights = np.concatenate((inner, offset), axis=1)
        return weights, (gram @ inner[:, :, None])[:, :, 0] + offset


def _each_solved(matrices: Floats, right: Floats) -> Floats:
    """Solve a stack; one matrix that is singular must not take the others with it."""
    try:
        return np.linalg.solve(matrices, right)
    except np.linalg.LinAlgError:
        out = np.full_like(right, np.nan)
        for j in range(len(matrices)):
            with suppress(np.linalg.LinAlgError):
                out[j] = np.linalg.solve(matrices[j], right[j])
        return out


# The space that matters: coefficients lie in the span of the records -----------------


def _reduced(X: Floats, *, constants: bool) -> tuple[Floats, Any]:
    """Return features by records without those that get no weight, turned into the
    span of the records where there are fewer of them; and the way back.
    """
    idle = np.zeros((1, X.shape[1])) if constants else X[:1]
    used = np.flatnonzero((idle != X).any(axis=0))
    rows = np.ascontiguousarray(X[:, used].T)
    turn: Any = None
    if len(rows) > len(X):
        rows, turn = _by_qr(rows)

    def back(coef: Floats) -> Floats:
        out = np.zeros((len(coef), X.shape[1]))
        out[:, used] = coef if turn is None else turn(coef)
        return out

    return rows, back


def _by_qr(rows: Floats) -> tuple[Floats, Any]:
    basis, inside = np.linalg.qr(rows)
    return inside, lambda coef: coef @ basis.T


# Newton's method ------------------------------------------------------------------


@lru_cache(maxsize=32)
def _contrasts(k: int) -> tuple[Floats, Ints, Ints, Floats]:
    """A basis of the scores of k classes up to a constant, the pairs of its members,
    and their products.
    """
    start = np.hstack((np.ones((k, 1)), np.eye(k)[:, : k - 1]))
    basis = np.linalg.qr(start)[0][:, 1:]
    a, b = np.tril_indices(k - 1)
    return basis, a, b, (basis[:, a] * basis[:, b]).T


@lru_cache(maxsize=8)
def _places(r: int, m: int) -> Ints:
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


def _pairs(rows: Floats) -> Floats:
    """The products of each row with those up to it."""
    r, n = rows.shape
    out, start = _scratch("pairs", (r * (r + 1) // 2, n), rows.dtype), 0
    for i in range(r):
        np.multiply(rows[: i + 1], rows[i], out=out[start : start + i + 1])
        start += i + 1
    return out


_memory = threading.local()


def _scratch(name: str, shape: tuple[int, ...], kind: Any) -> Floats:
    """Memory to write to, the same one every time: to get as much anew from the system
    takes longer than to compute what it is for.
    """
    kept: dict[Any, Floats] = _memory.__dict__.setdefault("kept", {})
    key, size = (name, kind), math.prod(shape)
    if key not in kept or kept[key].size < size:
        kept[key] = np.empty(size, dtype=kind)
    return kept[key][:size].reshape(shape)


def _softmax_newton(
    rows: Floats, codes: Ints, k: int, *, penalty: float, intercept: bool
) -> tuple[Floats, Floats]:
    """Minimise the log loss of softmax plus penalty / 2 times the squared weights.

    Gradients are in double precision. The Hessian only shows the way, so single
    precision does, and an old one, corrected by the gradients seen since, serves as
    long as it leads on quickly.
    """
    n = rows.shape[1]
    if not len(rows) and not intercept:
        return np.zeros((k, 0)), np.zeros(k)
    weights = np.full(len(rows), penalty)
    if intercept:
        rows = np.vstack((rows, np.ones(n)))
        weights = np.append(weights, 1e-10)
    m, r = k - 1, len(rows)
    basis = _contrasts(k)[0]
    curvature = _Curvature(rows, weights, k, np.float32)
    at, records = np.zeros((m, r)), np.arange(n)
    target = basis.T[:, codes]

    def measured(point: Floats) -> tuple[float, Floats]:
        scores = basis @ (point @ rows)
        scores = (scores - scores.max(axis=0)).astype(curvature.kind)
        shares = np.exp(scores)
        total = shares.sum(axis=0)
        loss = (np.log(total) - scores[codes, records]).sum(dtype=np.float64)
        return float(loss + (weights * point * point).sum() / 2), shares / total

    loss, shares = measured(at)
    before = np.inf  # the decrement with the same Hessian; 0 wants another
    for _ in range(_MAX_ITER):
        gradient = ((basis.T @ shares - target) @ rows.T + weights * at).ravel()
        if not before:
            curvature.factor(shares)
        step = curvature.solve(at.ravel(), gradient)
        decrement = float(gradient @ step)
        way = step.reshape(m, r)
        if 0 <= decrement < _DECREMENT * loss:
            at = at - way
            break
        length, lost = 2.0, np.inf
        while not lost <= loss - 1e-4 * length * decrement and length > _SHORTEST:
            length /= 2
            lost, new_shares = measured(at - length * way)
        if lost < loss:
            at, loss, shares = at - length * way, lost, new_shares
            slow = before > 0 and decrement > _KEEP_FACTOR * before
            before = 0.0 if length < 1 or slow else decrement
        elif curvature.kind is np.float32:  # no way down: look closer
            curvature = _Curvature(rows, weights, k, np.float64)
            loss, shares = measured(at)
            before = 0.0
        else:
            break
    scores = basis @ at
    if intercept:
        return scores[:, :-1], scores[:, -1]
    return scores, np.zeros(k)


class _Curvature:
    """The Hessian of the penalised log loss, in features of unit size.

    At first it is that of even shares: the same small matrix for each contrast. Between
    one factor and the next, gradients along the way correct it, as in L-BFGS.
    """

    def __init__(self, rows: Floats, weights: Floats, k: int, kind: Any) -> None:
        self.kind = kind
        basis, self._a, self._b, products = _contrasts(k)
        self._basis, self._products = basis.astype(kind), products.astype(kind)
        self._where = _places(len(rows), k - 1)
        size = np.sqrt((rows * rows).mean(axis=1))
        size[size == 0] = 1.0
        small = (rows / size[:, None]).astype(kind)
        self._pairs = _pairs(small)
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
        self._last: tuple[Floats, Floats] | None = None
        self._seen: list[tuple[Floats, Floats, float]] = []

    def factor(self, shares: Floats) -> None:
        """Take the Hessian where the classes have these shares."""
        shares = shares.astype(self.kind)
        inner = self._basis.T @ shares
        curved = self._products @ shares - inner[self._a] * inner[self._b]
        full = _scratch("full", self._where.shape, self.kind)
        np.take(curved @ self._pairs.T, self._where, out=full, mode="clip")
        full.flat[:: len(full) + 1] += self._ridge
        self._factor, self._failed = self._potrf(full.T, lower=1, overwrite_a=1)
        self._last, self._seen = None, []

    def solve(self, at: Floats, gradient: Floats) -> Floats:
        """Return the step from here; NaN where the Hessian has no factor."""
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

    def _plain(self, gradient: Floats) -> Floats:
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


def _hinge_newton(rows: Floats, signs: Floats, weight: float) -> Floats:
    """Minimise half the squared weights plus weight times the squared hinge losses."""
    at, scores = np.zeros(len(rows)), np.zeros(len(signs))

    def measured(point: Floats, margin: Floats) -> float:
        short = np.maximum(0.0, 1.0 - signs * margin)
        return float(point @ point / 2 + weight * (short @ short))

    loss = measured(at, scores)
    for _ in range(_MAX_ITER):
        short = np.maximum(0.0, 1.0 - signs * scores)
        gradient = at - 2 * weight * (rows @ (signs * short))
        active = rows[:, short > 0]
        hessian = 2 * weight * (active @ active.T)
        hessian.flat[:: len(hessian) + 1] += 1.0
        step = _solved(hessian, gradient)
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


def _solved(matrix: Floats, right: Floats) -> Floats:
    _, solution, _ = lapack.dposv(matrix, right, lower=1)
    return np.asarray(solution)


# Asking ---------------------------------------------------------------------------


class Stack:
    """All linear teachers as one matrix: classes by teachers by features."""

    def __init__(
        self,
        found: list[tuple[Floats, Floats, Ints] | None],
        *,
        n_classes: int,
    ) -> None:
        shape = n_classes, len(found)
        width = next(one[0].shape[1] for one in found if one is not None)
        self.coef = np.zeros((*shape, width))
        self.intercept = np.full(shape, -np.inf)
        self.silent = np.array([one is None for one in found], dtype=np.bool_)
        for j, one in enumerate(found):
            if one is not None:
                coef, intercept, codes = one
                if len(coef) < len(codes):  # two classes: the first scores nothing
                    coef = np.vstack((np.zeros_like(coef), coef))
                    intercept = np.append(0.0, intercept)
                self.coef[codes, j] = coef
                self.intercept[codes, j] = intercept
        if n_classes == 2:  # one score will do: that of the second class
            self.coef = self.coef[1:] - self.coef[:1]
            with np.errstate(invalid="ignore"):
                self.intercept = self.intercept[1:] - self.intercept[:1]

    def votes(self, features: Floats, out: npt.NDArray[Any]) -> None:
        """Write the votes, one row a teacher."""
        k, n_teachers, d = self.coef.shape
        flat = self.coef.reshape(k * n_teachers, d)
        step = max(1, _SCORES // len(flat))
        for start in range(0, out.shape[1], step):
            rows = slice(start, start + step)
            scores = (flat @ features[rows].T).reshape(k, n_teachers, -1)
            if k == 1:
                out[:, rows] = scores[0] > -self.intercept[0][:, None]
                continue
            scores += self.intercept[:, :, None]
            best, vote = scores[0], np.zeros(scores.shape[1:], dtype=out.dtype)
            for code in range(1, k):  # the first of the best, as argmax, and quicker
                higher = scores[code] > best
                np.maximum(vote, higher * out.dtype.type(code), out=vote)
                np.maximum(best, scores[code], out=best)
            out[:, rows] = vote
        out[self.silent] = NO_VOTE


def affine(model: Any) -> tuple[Floats, Floats] | None:
    """Return coefficients and intercepts of a linear model, with those of the scalers
    before it; None for all that is not that.
    """
    if type(model) in _SOLVERS:
        return np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
    if type(model) is not Pipeline or type(model[-1]) not in _SOLVERS:
        return None
    coef, intercept = (
        np.atleast_2d(model[-1].coef_),
        np.atleast_1d(model[-1].intercept_),
    )
    for _, scaler in reversed(model.steps[:-1]):
        scale, shift = _scaling(scaler)
        if scale is None:
            return None
        intercept = intercept + coef @ np.broadcast_to(shift, coef.shape[1:])
        coef = coef * scale
    return coef, intercept


def _scaling(scaler: Any) -> tuple[Any, Any]:
    """Return a and b of x -> a x + b."""
    if scaler == "passthrough":
        return 1.0, 0.0
    if type(scaler) is StandardScaler:
        scale = 1.0 / scaler.scale_ if scaler.with_std else 1.0
        return scale, -scaler.mean_ * scale if scaler.with_mean else 0.0
    if type(scaler) is MinMaxScaler and not scaler.clip:
        return scaler.scale_, scaler.min_
    if type(scaler) is MaxAbsScaler:
        return 1.0 / scaler.scale_, 0.0
    return None, None
