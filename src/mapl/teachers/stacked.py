"""Many linear teachers at once: trained side by side, asked in one matrix product.

What a teacher becomes and how it votes depends, to the last bit, on its own records:
shapes are made of public numbers and of the teacher's own size.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from scipy.special import expit

from mapl.arrays import Array, Bools, Floats, Ints, Reals
from mapl.privacy.votes import NO_VOTE

_MAX_ITER = 200
_SHORTEST = 1e-6  # step that is tried
_CLOSE = 1e-3  # relative change of a score; the next would be the square of that
_LARGEST = 1e100  # feature
_PAD = 8  # chunks are stacked with those of the same number of records, rounded up
_STACK_CELLS = 1 << 21  # of chunks that are solved side by side
_SCORES = 1 << 20  # computed at a time


def fit_binary_chunks(
    model: Any, features: Array, codes: Ints, chunks: list[Ints], second: list[int]
) -> Iterator[tuple[int, Reals, Reals]]:
    """Fit a logistic regression to each chunk, for its ``second`` class against its
    other one; yield its number, coefficients and intercept.

    Chunks are stacked with those of the same padded size, and computed side by side.
    Each is independent of the others to the last bit: its padding follows from its own
    size, it stops by its own rule, and every operation handles one matrix after the
    other. A chunk that cannot be computed is left out.
    """
    sizes = np.array([-(-len(rows) // _PAD) * _PAD for rows in chunks])
    width = features.shape[1]
    for size in np.unique(sizes):
        alike = np.flatnonzero(sizes == size)
        step = max(1, _STACK_CELLS // int(size * (width + min(size, width))))
        for start in range(0, len(alike), step):
            batch = alike[start : start + step]
            mine = [(chunks[j], second[j]) for j in batch]
            coef, intercept = _BinaryStack(model, features, codes, mine, size).solve()
            good = np.isfinite(coef).all(axis=1) & np.isfinite(intercept)
            for j in np.flatnonzero(good):
                yield int(batch[j]), coef[j : j + 1].copy(), intercept[j : j + 1].copy()


class _BinaryStack:
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
        self.finite = np.ones(n, dtype=np.bool_)
        for j, (rows, second) in enumerate(chunks):
            records = features[rows]
            # scikit-learn refuses what is not finite; here it spoils its own chunk.
            self.finite[j] = np.abs(records).max() < _LARGEST
            self.X[j, : len(rows), :d] = records if self.finite[j] else 0.0
            self.used[j, : len(rows)] = 1.0
            self.target[j, : len(rows)] = codes[rows] == second
        if self.dual:
            self.gram = self.X @ self.X.transpose(0, 2, 1)
        elif self.intercept:
            self.X[:, :, d] = self.used

    def solve(self) -> tuple[Reals, Reals]:
        """Return coefficients and intercepts."""
        n, size, width = self.X.shape
        weights = np.zeros((n, size + 1 if self.dual else width))
        scores = np.zeros((n, size))
        left = np.arange(n)  # not yet converged
        loss = self._loss(weights, scores, left)
        for _ in range(_MAX_ITER):
            target, target_scores = self._full_step(scores[left], left)
            step, move = target - weights[left], target_scores - scores[left]
            length = np.ones((len(left), 1))
            worse = np.ones(len(left), dtype=np.bool_)
            while worse.any():
                new = weights[left] + length * step, scores[left] + length * move
                lost = self._loss(*new, left)
                worse = lost > loss[left] + 1e-9 * (1 + np.abs(loss[left]))
                worse &= length[:, 0] > _SHORTEST
                length[worse] /= 2
            weights[left], scores[left] = new
            loss[left] = lost
            left = left[~self._converged(move * self.used[left] / (1 + np.abs(new[1])))]
            if not len(left):
                break
        weights[~self.finite] = np.nan
        if self.dual:
            return (weights[:, None, :-1] @ self.X)[:, 0], weights[:, -1]
        return weights[:, :-1], weights[:, -1]

    def _converged(self, moves: Reals) -> Bools:
        return np.asarray(np.abs(moves).max(axis=1) <= _CLOSE)

    def _loss(self, weights: Reals, scores: Reals, left: Ints) -> Reals:
        """Return the penalised log loss of each chunk."""
        logs = np.logaddexp(0.0, scores) - self.target[left] * scores
        inner = scores - weights[:, -1:] if self.dual else weights[:, :-1]
        squared = (weights[:, :-1] * inner).sum(axis=1)
        loss = (self.used[left] * logs).sum(axis=1) + self.penalty / 2 * squared
        return np.asarray(loss)

    def _full_step(self, scores: Reals, left: Ints) -> tuple[Reals, Reals]:
        """Return where a full step leads to: weights, and scores of the records."""
        used = self.used[left]
        share = expit(scores)
        curved = used * np.maximum(share * (1 - share), 1e-20)
        pull = used * (self.target[left] - share)
        if self.dual:
            return self._dual_full_step(scores, curved, pull, self.gram[left])
        X = self.X if len(left) == len(self.X) else self.X[left]
        turned = X.transpose(0, 2, 1)
        hessian = (turned * curved[:, None]) @ X
        diagonal = np.einsum("ijj->ij", hessian)
        diagonal[:, :-1] += self.penalty
        diagonal[:, -1] += 0.0 if self.intercept else 1.0
        right = turned @ (curved * scores + pull)[:, :, None]
        weights = _solve_each(hessian, right)
        return weights[:, :, 0], (X @ weights)[:, :, 0]

    def _dual_full_step(
        self, scores: Reals, curved: Reals, pull: Reals, gram: Reals
    ) -> tuple[Reals, Reals]:
        """Newton step in the weights of the records."""
        root = np.sqrt(curved)
        matrix = gram * (root[:, :, None] * root[:, None])
        np.einsum("ijj->ij", matrix)[:] += self.penalty
        work = root * scores + pull / np.where(root > 0, root, 1.0)
        solved = _solve_each(matrix, np.stack((work, root), axis=2))
        solved *= root[:, :, None]
        first, second = solved[:, :, 0], solved[:, :, 1]
        offset = np.zeros((len(gram), 1))
        if self.intercept:  # such that the weights of the records sum to zero
            offset = (first.sum(axis=1) / second.sum(axis=1))[:, None]
        inner = first - offset * second
        weights = np.concatenate((inner, offset), axis=1)
        return weights, (gram @ inner[:, :, None])[:, :, 0] + offset


def _solve_each(matrices: Reals, right: Reals) -> Reals:
    """Solve a stack of systems; a singular one gives NaN, alone."""
    try:
        return np.linalg.solve(matrices, right)
    except np.linalg.LinAlgError:
        out = np.full_like(right, np.nan)
        for j in range(len(matrices)):
            with suppress(np.linalg.LinAlgError):
                out[j] = np.linalg.solve(matrices[j], right[j])
        return out


class CoefficientStack:
    """All linear teachers as one matrix: classes by teachers by features."""

    def __init__(
        self,
        models: list[tuple[Reals, Reals, Ints] | None],
        *,
        n_classes: int,
    ) -> None:
        shape = n_classes, len(models)
        width = next(model[0].shape[1] for model in models if model is not None)
        self.coef = np.zeros((*shape, width))
        self.intercept = np.full(shape, -np.inf)
        self.silent = np.array([model is None for model in models], dtype=np.bool_)
        for j, model in enumerate(models):
            if model is not None:
                coef, intercept, codes = model
                if len(coef) < len(codes):  # two classes: the first scores nothing
                    coef = np.vstack((np.zeros_like(coef), coef))
                    intercept = np.append(0.0, intercept)
                self.coef[codes, j] = coef
                self.intercept[codes, j] = intercept
        if n_classes == 2:  # the score of the second class is enough
            self.coef = self.coef[1:] - self.coef[:1]
            with np.errstate(invalid="ignore"):
                self.intercept = self.intercept[1:] - self.intercept[:1]

    def shares(self, features: Reals) -> Iterator[tuple[slice, Floats]]:
        """Yield some rows, and the softmax of their scores: (teachers, rows, classes).

        NaN for a silent teacher.
        """
        for rows, scores in self._scores(features):
            if len(scores) == 1:
                second = expit(scores[0] + self.intercept[0][:, None])
                yield rows, np.stack((1 - second, second), axis=2)
                continue
            scores += self.intercept[:, :, None]
            with np.errstate(invalid="ignore"):  # of silent teachers
                scores -= scores.max(axis=0)
            powers = np.exp(scores)
            yield rows, (powers / powers.sum(axis=0)).transpose(1, 2, 0)

    def _scores(self, features: Reals) -> Iterator[tuple[slice, Reals]]:
        """Yield scores without intercepts, (classes, teachers, rows), block by block:
        shapes follow from public numbers.
        """
        k, n_teachers, d = self.coef.shape
        flat = self.coef.reshape(k * n_teachers, d)
        step = max(1, _SCORES // len(flat))
        for start in range(0, len(features), step):
            rows = slice(start, start + step)
            yield rows, (flat @ features[rows].T).reshape(k, n_teachers, -1)

    def votes(self, features: Reals, out: Array) -> None:
        """Write the votes, one row a teacher."""
        for rows, scores in self._scores(features):
            k = len(scores)
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
