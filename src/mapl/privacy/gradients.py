"""What a record says about a current model, in exact integers.

Logits are products of integers, probabilities come from tables. So a record's residuals
are, to the last bit, a function of that record and of the public model: products of
integers below 2^53 are exact in float64, in any order and on any number of threads.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from mapl.arrays import Floats, Ints
from mapl.privacy.questions import Question, StackQuestion

RESIDUAL_GRID = 2**11  # integer steps of a residual of 1
WEIGHT_GRID = 2**20  # of a logit of 1
_STEPS = 2**11  # entries of a table for a logit of 1
_FARTHEST = 16  # logit in a table
_EXP_GRID = 2**30  # integer steps of exp(0)
_LARGEST_WEIGHT = 2.0**36
CONSTANT = 2**8  # integer steps of a record that says nothing but its residuals


def exact_weights(weights: Floats) -> Floats:
    """Return weights of a record's integers on their grid, small enough to be exact."""
    found = np.rint(weights * WEIGHT_GRID)
    lengths = np.linalg.norm(found, axis=0)
    return np.asarray(np.trunc(found * np.minimum(1, _LARGEST_WEIGHT / (lengths + 1))))


@cache
def _sigmoids() -> Floats:
    """Return the sigmoids of logits from -16 to 16, as integers."""
    logits = (np.arange(2 * _FARTHEST * _STEPS) + 0.5) / _STEPS - _FARTHEST
    return np.asarray(np.rint(RESIDUAL_GRID / (1 + np.exp(-logits))))


@cache
def _powers() -> Floats:
    """Return exp(-x) for x from 0 to 16, as integers; the last is 0."""
    found = np.rint(_EXP_GRID * np.exp(-(np.arange(_FARTHEST * _STEPS) / _STEPS)))
    return np.append(found, 0.0)


def residuals_of(cells: Floats, labels: Ints, question: Question) -> Floats:
    """Return label minus probability for each class (for two classes, the second); -1
    is an unknown label, of which nothing counts.
    """
    found = integer_probabilities(cells @ question.weights)
    codes = one_hot_labels(labels, found.shape[1])
    return np.where((labels < 0)[:, None], 0.0, codes * RESIDUAL_GRID - found)


def integer_probabilities(logits: Floats) -> Floats:
    """Return the probability of each class (of two, of the second) for logits in
    integer steps, in steps of the residuals' grid.
    """
    if logits.shape[1] > 1:
        return _softmax(logits)
    places = np.floor(logits / (WEIGHT_GRID // _STEPS)) + _FARTHEST * _STEPS
    table = _sigmoids()
    return np.asarray(table[np.clip(places, 0, len(table) - 1).astype(np.int64)])


def _softmax(logits: Floats) -> Floats:
    """Return probabilities on the grid of residuals, from a table of exponentials."""
    below = logits.max(axis=1, keepdims=True) - logits
    places = np.floor(below * (_STEPS / WEIGHT_GRID))
    powers = _powers()
    found = powers[np.minimum(places, len(powers) - 1).astype(np.int64)]
    shares = found / found.sum(axis=1, keepdims=True)
    return np.asarray(np.rint(shares * RESIDUAL_GRID))


def probabilities_of(logits: Floats) -> Floats:
    """Return sigmoid or softmax of logits in floating point: for public use."""
    if logits.shape[1] == 1:
        return np.asarray(1 / (1 + np.exp(-np.clip(logits, -30, 30))))
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def one_hot_labels(labels: Ints, columns: int) -> Floats:
    """Return class numbers as vectors; of two classes, only the second has a column."""
    if columns == 1:
        return np.asarray(labels[:, None] == 1, dtype=np.float64)
    return np.asarray(labels[:, None] == np.arange(columns), dtype=np.float64)


def class_logits(cells: Floats, weights: Floats) -> Floats:
    """Return each class's logit in integer steps, for `stack_residuals`."""
    logits = cells @ weights
    if logits.shape[1] == 1:
        half = np.floor(logits / 2)
        logits = np.concatenate((-half, half), axis=1)
    else:  # clipped first, so that the sum of all classes is exact
        logits = np.clip(logits, -(2.0**40), 2.0**40)
        logits = logits - np.rint(logits.mean(axis=1, keepdims=True))
    return np.clip(logits, -_FARTHEST * WEIGHT_GRID, _FARTHEST * WEIGHT_GRID)


def stack_residuals(
    sources: list[Floats], labels: Ints, question: StackQuestion
) -> Floats:
    """Return the gradient of the log-likelihood of weighted logits: for each model's
    scale, and for each class's bias.
    """
    coarse = [np.rint(source / 2**10) for source in sources]  # products stay exact
    logits = question.biases[None, :] * 1.0
    scaled = [
        np.rint(s * scale / 2**10)
        for s, scale in zip(coarse, question.scales, strict=True)
    ]
    logits = np.sum([*scaled, np.broadcast_to(logits, scaled[0].shape)], axis=0)
    shares = _softmax(logits)
    codes = (labels[:, None] == np.arange(shares.shape[1])) * float(RESIDUAL_GRID)
    residuals = codes - shares
    slopes = [
        np.clip(
            np.rint((residuals * s).sum(axis=1) / unit),
            -(2.0**15),
            2.0**15,
        )
        for s, unit in zip(coarse, question.units, strict=True)
    ]
    out = np.concatenate((np.stack(slopes, axis=1), residuals), axis=1)
    return np.where((labels < 0)[:, None], 0.0, out)
