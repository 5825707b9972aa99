"""Asking trees: the votes of many forests without a call for each tree.

For many points a tree is a Boolean formula. Which points go left at a node is a row of
bits, 64 points a word; from the leaves up, the bits of a node's answer are

    right ^ (goes_left & (left ^ right)).

For a few points all trees are walked down at once. Both give the votes of `predict`,
to the last bit: sums are taken tree by tree, as scikit-learn takes them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier

from mapl.arrays import Array, Integers

_SINGLE = (DecisionTreeClassifier, ExtraTreeClassifier)
_FORESTS = (RandomForestClassifier, ExtraTreesClassifier)
_BLOCK = 4096  # points whose bits are computed at a time
_FEW = 8  # points that are walked down
_BITS_PAY = 1000  # nodes times bits of a tree, up to which its formula is faster


def can_read(model: Any) -> bool:
    """Whether a fitted model is made of trees that this module can read."""
    if type(model) in _SINGLE + _FORESTS:
        return bool(model.n_outputs_ == 1)
    if type(model) is GradientBoostingClassifier:
        return model.init is None or model.init == "zero"
    if type(model) is HistGradientBoostingClassifier:
        return not np.any(model.is_categorical_)
    return False


class Trees:
    """The trees of all teachers, ready to be asked.

    Parameters
    ----------
    ensembles : list of Ensemble
        Of models of one type.
    """

    def __init__(self, ensembles: list[Ensemble]) -> None:
        self.ensembles = ensembles
        self.kind = ensembles[0].kind

    def accepts(self, features: Array) -> bool:
        """Whether the features fit: `predict` refuses what overflows as well."""
        return bool(np.abs(features).max(initial=0.0) <= np.finfo(self.kind).max)

    def votes(self, features: Array) -> Integers:
        """Return votes as indices into each model's own classes, one row a model.

        The features must be finite.
        """
        points = np.asarray(features, dtype=self.kind)
        if len(points) <= _FEW:
            return np.stack([self._walk_down(point) for point in points], axis=1)
        out = np.empty((len(self.ensembles), len(points)), dtype=np.int64)
        for start in range(0, len(points), _BLOCK):
            block = _Questions(points[start : start + _BLOCK])
            for votes, ensemble in zip(out, self.ensembles, strict=True):
                answers = ensemble.answers(block)
                votes[start : start + _BLOCK] = ensemble.classes(answers)
        return out

    @cached_property
    def _nodes(self) -> tuple[Array, ...]:
        """Return feature, threshold, children (right, left) of all nodes, and the
        roots; a child below zero is an answer.

        Nodes are ordered by level, so that a walk down reads memory in order.
        """
        sizes = [len(ensemble.left) for ensemble in self.ensembles]
        depth = np.concatenate([ensemble.depth for ensemble in self.ensembles])
        order = np.argsort(depth, kind="stable")
        place = np.empty(len(order), dtype=np.int32)
        place[order] = np.arange(len(order))
        children = np.empty((2, len(order)), dtype=np.int32)
        roots, start = [], 0
        for ensemble, size in zip(self.ensembles, sizes, strict=True):
            mine = slice(start, start + size)
            seen = np.where(ensemble.left < 0, ~ensemble.answer, place[mine])
            children[:, mine] = seen[ensemble.right], seen[ensemble.left]
            roots.append(seen[ensemble.roots])
            start += size
        return (
            np.concatenate([ensemble.feature for ensemble in self.ensembles])[order],
            np.concatenate([ensemble.threshold for ensemble in self.ensembles])[order],
            children[:, order].T.ravel(),
            np.concatenate(roots),
        )

    @cached_property
    def _grouped_by_size(self) -> tuple[Array, Array, list[tuple[int, slice]]]:
        """Return the models whose trees each name a class, and that have as many as the
        first; the numbers of their trees; and the other models with their trees.
        """
        n_trees = np.array([ensemble.n_trees for ensemble in self.ensembles])
        pure = np.array([ensemble.pure for ensemble in self.ensembles])
        alike = pure & (n_trees == n_trees[0])
        ends = np.cumsum(n_trees)
        starts = ends - n_trees
        trees = starts[alike, None] + np.arange(n_trees[0])
        others = [(int(j), slice(starts[j], ends[j])) for j in np.flatnonzero(~alike)]
        return np.flatnonzero(alike), trees, others

    def _walk_down(self, point: Array) -> Integers:
        """Return the vote of each model on one point."""
        feature, threshold, children, roots = self._nodes
        position = roots.copy()
        moving = np.flatnonzero(position >= 0)
        here = position[moving]
        while len(moving):
            left = point.take(feature.take(here)) <= threshold.take(here)
            here = children.take(2 * here + left)
            position[moving] = here
            inner = here >= 0
            moving, here = moving[inner], here[inner]
        answers, out = ~position, np.empty(len(self.ensembles), dtype=np.int64)
        alike, trees, others = self._grouped_by_size
        if len(alike):
            # One class after the other; classes that a model lacks count nothing.
            codes = answers[trees]
            counts = [(codes == c).sum(axis=1) for c in range(codes.max() + 1)]
            out[alike] = np.argmax(counts, axis=0)
        for j, own in others:
            out[j] = self.ensembles[j].classes(answers[own, None])[0]
        return out


class _Questions:
    """Which points answer yes to "is this feature at most that?": for each feature a
    row of bits before and after each value that occurs.
    """

    def __init__(self, points: Array) -> None:
        self.n = len(points)
        n_words = -(-self.n // 64)
        place = np.arange(self.n)
        bit = np.left_shift(1, place & 7).astype(np.uint8)
        keys, tables = [], []
        for feature, values in enumerate(points.T):
            distinct, number = np.unique(values, return_inverse=True)
            table = np.zeros((len(distinct) + 1, 8 * n_words), dtype=np.uint8)
            np.bitwise_or.at(table, (number + 1, place >> 3), bit)
            tables.append(np.bitwise_or.accumulate(table.view(np.uint64), axis=0))
            keys.append(_keys(feature, distinct))
        self._keys, self.bits = np.concatenate(keys), np.concatenate(tables)

    def rows(self, feature: Integers, threshold: Array) -> Integers:
        """Return which row of bits answers each question."""
        # Before the table of feature f lie f rows more than keys.
        below = np.searchsorted(self._keys, _keys(feature, threshold), side="right")
        return np.asarray(below + feature)


def _keys(feature: Any, value: Array) -> Array:
    """Sort keys as complex numbers: by the real part, then by the imaginary one."""
    keys = np.empty(len(value), dtype=np.complex128)
    keys.real, keys.imag = feature, value
    return keys


class Ensemble:
    """The trees of one teacher: their nodes one tree after the other.

    Attributes
    ----------
    left, right, feature, threshold : ndarray
        Of each node; left is -1 at a leaf.
    roots : ndarray of int
        The first node of each tree.
    answer : ndarray of int
        Of each leaf, which row of the table of its tree it gives.
    table : ndarray, shape (n_trees, n_answers, n_columns)
        What a tree adds to the scores, by its answer.
    column : ndarray of int or None
        Which score a tree adds to, where it adds to one only (boosting).
    """

    def __init__(self, model: Any) -> None:
        hist = type(model) is HistGradientBoostingClassifier
        self.kind: Any = np.float64 if hist else np.float32
        self.start: Any = 0.0
        self.column: Integers | None = None
        self.zero_is_second = type(model) is GradientBoostingClassifier
        if hist:
            self.start = np.asarray(model._baseline_prediction).reshape(-1)
            stages = [
                [_nodes_of_histogram_tree(tree.nodes) for tree in row]
                for row in model._predictors
            ]
        elif type(model) is GradientBoostingClassifier:
            at = np.zeros((1, model.n_features_in_), dtype=np.float32)
            self.start = model._raw_predict_init(at)[0]
            rate = model.learning_rate
            stages = [
                [_nodes_of_tree(tree.tree_, rate) for tree in row]
                for row in model.estimators_
            ]
        else:
            trees = [model] if type(model) in _SINGLE else model.estimators_
            stages = [[_nodes_of_tree(tree.tree_)] for tree in trees]
        if self.zero_is_second or np.ndim(self.start):
            self.column = np.tile(np.arange(len(stages[0])), len(stages))
        self._join([nodes for row in stages for nodes in row])

    @property
    def quick(self) -> bool:
        """Whether its formula is faster than `predict`: not for large trees."""
        return len(self.left) * self.n_bits <= _BITS_PAY * self.n_trees

    def _join(self, trees: list[tuple[Array, ...]]) -> None:
        """Number the nodes of all trees in one sequence."""
        sizes = np.array([len(nodes[0]) for nodes in trees])
        self.n_trees = len(trees)
        self.roots = np.cumsum(sizes) - sizes
        left, right, feature, threshold, value = (
            np.concatenate(parts) for parts in zip(*trees, strict=True)
        )
        shift = np.repeat(self.roots, sizes)
        leaf = left < 0
        self.left = np.where(leaf, -1, left + shift).astype(np.int32)
        self.right = np.where(leaf, -1, right + shift).astype(np.int32)
        self.feature = feature.astype(np.int32)
        self.threshold = threshold
        leaves = np.flatnonzero(leaf)
        tree = np.repeat(np.arange(self.n_trees), sizes)[leaves]
        self.answer = np.zeros(len(left), dtype=np.int32)
        self.answer[leaves] = self._numbered(value[leaves], tree)
        self.n_bits = max(1, int(self.table.shape[1] - 1).bit_length())

    def _numbered(self, values: Array, tree: Integers) -> Integers:
        """Number the leaf values of each tree, and fill the table. Leaves that name a
        class are numbered by it.
        """
        one_class = ((values == 0) | (values == 1)).all() and (values.sum(1) == 1).all()
        self.pure = self.column is None and bool(one_class)
        if self.pure:
            self.table = np.eye(values.shape[1])[None]
            return np.asarray(values.argmax(axis=1))
        order = np.lexsort((*values.T, tree))
        values, tree = values[order], tree[order]
        new = np.ones(len(order), dtype=np.bool_)
        new[1:] = (values[1:] != values[:-1]).any(axis=1) | (tree[1:] != tree[:-1])
        count: Any = np.cumsum(new)
        number = count - count[np.searchsorted(tree, tree)]
        self.table = np.zeros((self.n_trees, number.max() + 1, values.shape[1]))
        self.table[tree, number] = values
        out: Integers = np.empty(len(order), dtype=np.int64)
        out[order] = number
        return out

    @cached_property
    def _questions(self) -> tuple[Integers, Array, Integers]:
        """Return the distinct features and thresholds, and which a node asks."""
        inner = np.flatnonzero(self.left >= 0)
        feature, threshold = self.feature[inner], self.threshold[inner]
        order = np.lexsort((threshold, feature))
        feature, threshold = feature[order], threshold[order]
        new = np.ones(len(order), dtype=np.bool_)
        new[1:] = (feature[1:] != feature[:-1]) | (threshold[1:] != threshold[:-1])
        asks = np.zeros(len(self.left), dtype=np.int32)
        asks[inner[order]] = np.cumsum(new) - 1
        return feature[new], threshold[new], asks

    @cached_property
    def _levels(self) -> list[tuple[Integers, Integers, Integers]]:
        """Return, from the roots down, the nodes of each level, and which of them are
        inner nodes and which leaves. A level has all left children first.
        """
        levels: list[tuple[Integers, Integers, Integers]] = []
        level: Integers = self.roots
        while len(level):
            inner = self.left[level] >= 0
            parents = level[inner]
            levels.append((level, np.flatnonzero(inner), np.flatnonzero(~inner)))
            level = np.concatenate((self.left[parents], self.right[parents]))
        return levels

    @property
    def depth(self) -> Integers:
        """How far below its root each node is."""
        depth = np.zeros(len(self.left), dtype=np.int32)
        for number, (level, _, _) in enumerate(self._levels):
            depth[level] = number
        return depth

    def answers(self, asked: _Questions) -> Array:
        """Return the answer of each tree on each point."""
        features, thresholds, asks = self._questions
        rows = asked.rows(features, thresholds)
        bit = np.arange(self.n_bits)
        n_words = asked.bits.shape[1]
        below: Array = np.empty((0, self.n_bits, n_words), dtype=np.uint64)
        for level, inner, leaves in reversed(self._levels):
            here = np.empty((len(level), self.n_bits, n_words), dtype=np.uint64)
            set_bits = (self.answer[level[leaves], None] >> bit) & 1
            here[leaves] = np.negative(set_bits.astype(np.uint64))[:, :, None]
            if len(inner):
                yes = asked.bits[rows[asks[level[inner]]]]
                left, right = below[: len(inner)], below[len(inner) :]
                left ^= right
                left &= yes[:, None]
                left ^= right
                here[inner] = left
            below = here
        planes = np.unpackbits(below.view(np.uint8), axis=2, bitorder="little")
        kind: Any = np.uint8 if self.n_bits <= 8 else np.int32
        answers: Any = planes[:, 0, : asked.n].astype(kind)
        for place in range(1, self.n_bits):
            answers |= planes[:, place, : asked.n].astype(kind) << kind(place)
        return np.asarray(answers)

    def classes(self, answers: Array) -> Integers:
        """Return the class that each point gets, from the answer of each tree."""
        if self.pure:
            kind = np.uint8 if self.n_trees < 256 else np.uint32
            counts = [
                (answers == c).sum(axis=0, dtype=kind)
                for c in range(self.table.shape[2])
            ]
            return np.asarray(np.argmax(counts, axis=0))
        width = self.table.shape[2] if self.column is None else len(self.start)
        scores = np.zeros((answers.shape[1], width)) + self.start
        for b, table in enumerate(self.table):
            if self.column is None:
                scores += table.take(answers[b], axis=0)
            else:
                scores[:, self.column[b]] += table[:, 0].take(answers[b])
        if width > 1:
            mean = scores / self.n_trees if self.column is None else scores
            return np.asarray(mean.argmax(axis=1))
        above = scores[:, 0] >= 0 if self.zero_is_second else scores[:, 0] > 0
        return np.asarray(above, dtype=np.int64)


def _nodes_of_tree(tree: Any, scale: float = 1.0) -> tuple[Array, ...]:
    """The nodes of scikit-learn's tree: children, feature, threshold, values."""
    value = tree.value[:, 0, :]
    value = value if scale == 1.0 else scale * value
    return (
        tree.children_left,
        tree.children_right,
        tree.feature,
        tree.threshold,
        value,
    )


def _nodes_of_histogram_tree(nodes: Any) -> tuple[Array, ...]:
    """The nodes of a tree over histograms."""
    leaf = nodes["is_leaf"].astype(np.bool_)
    left, right = (
        np.where(leaf, -1, nodes[side].astype(np.int64)) for side in ("left", "right")
    )
    value = nodes["value"].astype(np.float64)[:, None]
    return left, right, nodes["feature_idx"], nodes["num_threshold"], value
