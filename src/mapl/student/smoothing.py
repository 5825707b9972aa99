"""Noisy shares of the vote, smoothed by regression, and the labels that follow.

Which features and penalties serve best is found on the noisy shares themselves, whose
noise is known: model selection is free.
"""

from dataclasses import dataclass

import numpy as np

from mapl.arrays import Floats, Ints, Singles
from mapl.privacy.answers import ShareBatch
from mapl.privacy.votes import ABSTAIN
from mapl.student.features import feature_maps

_CHOOSE_AT = (
    0.15,
    0.5,
    1.0,
)  # shares of the dissents after which the regression is chosen
_SPREADS = (1.0, 4.0, 16.0, 64.0)  # variance of its weights before any data
_STEPS, _LAST_STEPS = 40, 120  # of L-BFGS
_STRAY = 0.15  # how far a point's share may lie from the student's prediction


class Shares:
    """The noisy shares of a pool, batch after batch.

    Where a class was the guess, its share is 1 minus the others: noisier, and nothing
    new. With two classes it is as good as the other.
    """

    def __init__(self, n_points: int, n_classes: int) -> None:
        self.times: Ints = np.zeros((n_points, n_classes), dtype=np.int64)
        self._counted: Floats = np.zeros((n_points, n_classes))
        self._asked: Ints = np.zeros((n_points, 1), dtype=np.int64)
        self._all: Floats = np.zeros((n_points, n_classes))

    def add(self, batch: ShareBatch) -> None:
        """Add a batch in which no point comes twice."""
        counted = np.ones(batch.shares.shape, dtype=np.int64)
        if batch.shares.shape[1] > 2:
            counted[np.arange(len(counted)), batch.guess] = 0
        self.times[batch.rows] += counted
        self._counted[batch.rows] += counted * batch.shares
        self._asked[batch.rows] += 1
        self._all[batch.rows] += batch.shares

    def counted(self) -> Floats:
        """Return the mean of the shares that were counted, 0 where none was."""
        mean: Floats = self._counted / np.maximum(self.times, 1)
        return mean

    def known(self) -> Ints:
        """Return the points that were asked for."""
        return np.flatnonzero(self._asked)

    def mean(self) -> Floats:
        """Return the averaged shares; even ones where nothing was asked."""
        even = np.full(self._all.shape, 1 / self._all.shape[1])
        np.divide(self._all, self._asked, out=even, where=self._asked > 0)
        return even


@dataclass(frozen=True)
class Decision:
    """For each point the most probable label, the probability that most teachers gave
    it, and the expected share of teachers who did. Public.
    """

    label: Ints
    probability: Floats
    share: Floats

    def labels(self, at_least: float = 2 / 3) -> Ints:
        """Return the labels, ABSTAIN where they are less probable than ``at_least``."""
        return np.where(self.probability >= at_least, self.label, ABSTAIN)


def decide(shares: Shares, smooth: Floats, variance: float) -> Decision:
    """Combine what was published for each point with the student's prediction.

    Bayes' rule: one class has the largest share, the others split the rest evenly. The
    prior for that class is the student's probability, and its share is close to it.
    ``variance`` is that of the noise on one published share.
    """
    mean, n_classes = shares.counted(), smooth.shape[1]
    precision = shares.times / max(variance, 1e-8) / (2 if n_classes == 2 else 1)
    largest = np.linspace(max(0.3, 1 / n_classes), 1.0, 15)
    fits = []
    for share in largest:
        rest = (1 - share) / (n_classes - 1)
        off_rest, off_share = (precision * (mean - x) ** 2 for x in (rest, share))
        total = off_rest.sum(axis=1, keepdims=True)
        prior = ((share - smooth) / _STRAY) ** 2
        fits.append(-(total - off_rest + off_share + prior) / 2)
    log_posterior = np.array(fits) + np.log(np.maximum(smooth, 1e-6))
    log_posterior -= log_posterior.max(axis=(0, 2), keepdims=True)
    posterior = np.exp(log_posterior)
    posterior /= posterior.sum(axis=(0, 2), keepdims=True)
    of_class = posterior.sum(axis=0)
    best = of_class.argmax(axis=1)
    rows = np.arange(len(best))
    expected = np.einsum("a,anc->nc", largest, posterior)
    return Decision(best, of_class[rows, best], expected[rows, best])


class Smoother:
    r"""Softmax regression of noisy shares on public features: minimises
    :math:`\sum_{ic} n_{ic} (s_{ic} - p_c(x_i))^2 / v + \|W\|^2/\tau^2`
    with p the softmax of the linear form Wx + b, n how often a share was published and
    v the variance of its noise. Which of several maps gives x, and :math:`\tau^2`, are
    those that predict held-out noisy shares best.
    """

    def __init__(
        self, features: Floats, variance: float, rng: np.random.Generator
    ) -> None:
        self._maps = feature_maps(features, rng)
        self._map, self._spread = 0, _SPREADS[1]
        self._weights: Floats | None = None
        self._variance = max(variance, 1e-8)
        self._rng = rng
        self._choose_at = _CHOOSE_AT[0]

    def fit(self, shares: Shares, spent: float, *, last: bool) -> Floats:
        """Return the smoothed shares of all points; the last fit starts from zero, so
        that it does not depend on earlier rounds.
        """
        rows = shares.known()
        mean, weights = shares.counted()[rows], shares.times[rows] / self._variance
        if mean.shape[1] == 2:
            weights = weights / 2  # both columns hold the same number
        if last or spent > self._choose_at:
            later = (part for part in _CHOOSE_AT if part > spent)
            self._choose_at = min(later, default=np.inf)
            self._choose(rows, weights, mean)
        table, start = self._maps[self._map], None if last else self._weights
        self._weights = _softmax_fit(
            *(table[rows], weights, mean),
            *(self._spread, start, _LAST_STEPS if last else _STEPS),
        )
        return _softmax_shares(table, self._weights)

    def _choose(self, rows: Ints, weights: Floats, mean: Floats) -> None:
        """Choose what predicts the shares of a held-out third of the points best."""
        held = self._rng.random(len(rows)) < 1 / 3
        least, best = np.inf, (self._map, self._spread)
        for number, table in enumerate(self._maps):
            fitted, before = None, np.inf
            for spread in _SPREADS:
                rest = table[rows[~held]], weights[~held], mean[~held]
                fitted = _softmax_fit(*rest, spread, fitted, 25)
                found = _softmax_shares(table[rows[held]], fitted)
                loss = float((weights[held] * (mean[held] - found) ** 2).sum())
                if loss < least:
                    least, best = loss, (number, spread)
                if loss > before:
                    break
                before = loss
        if best[0] != self._map:
            self._weights = None
        self._map, self._spread = best


def _softmax_fit(
    table: Singles,
    weights: Floats,
    target: Floats,
    spread: float,
    start: Floats | None,
    steps: int,
) -> Floats:
    """Return weights and, in the last row, biases of the regression."""
    from scipy.optimize import minimize

    d, n_classes = table.shape[1], target.shape[1]
    weights, target = weights.astype(np.float32), target.astype(np.float32)
    penalty = np.full((d + 1, 1), 1 / spread)
    penalty[d] = 0.01

    def loss(flat: Floats) -> tuple[float, Floats]:
        inner = flat.reshape(d + 1, n_classes)
        shares = _softmax_shares(table, inner)
        off = shares - target
        pull = weights * off
        slope = shares * (pull - (pull * shares).sum(axis=1, keepdims=True))
        gradient = penalty * inner
        value = (pull * off).sum(dtype=np.float64) + (gradient * inner).sum()
        gradient[:d] += (slope.T @ table).T  # twice as fast as table.T @ slope
        gradient[d] += slope.sum(axis=0, dtype=np.float64)
        return value / 2, gradient.ravel()

    begin = np.zeros((d + 1) * n_classes) if start is None else start.ravel()
    options = {"maxiter": steps, "maxcor": 15}
    found = minimize(loss, begin, jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x.reshape(d + 1, n_classes))


def _softmax_shares(table: Singles, weights: Floats) -> Floats:
    single = weights.astype(np.float32)
    logits = table @ single[:-1] + single[-1]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
