"""Teachers that are ready to be asked: public points in, votes out."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from sklearn.utils import _safe_indexing

from mapl.arrays import Integers, Ints, n_rows
from mapl.privacy.soft_dissent import on_grid
from mapl.privacy.votes import NO_VOTE
from mapl.progress import Progress
from mapl.records.table import copy_of
from mapl.teachers import linear
from mapl.teachers.silence import seed_everything, teacher_surroundings
from mapl.teachers.stacked import CoefficientStack
from mapl.teachers.training import Teacher

if TYPE_CHECKING:  # loaded when teachers are asked; workers that train do without it
    from mapl.teachers.trees import Ensemble, Trees

_BLOCK_CELLS = 1 << 24  # cells of the public data that are asked at a time


def ask(teachers: list[Teacher | None], features: Any, *, n_classes: int) -> Integers:
    """Return the votes of all teachers, shape (n_teachers, n_queries).

    The public data is read in blocks, so memory stays bounded by the votes themselves.
    """
    return Panel(teachers, n_classes=n_classes).ask(features)


class Panel:
    """Teachers that are ready to be asked, again and again.

    Linear models are stacked into one matrix, small trees into one table; the others
    are asked one by one. How a teacher is asked depends on that teacher alone, and so
    do its votes.
    """

    def __init__(
        self, teachers: list[Teacher | None], *, n_classes: int, soft: bool = False
    ) -> None:
        self.teachers, self.n_classes = teachers, n_classes
        from mapl.teachers.trees import Ensemble, Trees

        with teacher_surroundings():
            forms = [_fast_form(teacher, soft=soft) for teacher in teachers]
        self._linear = [j for j, form in enumerate(forms) if isinstance(form, tuple)]
        self._trees = [j for j, form in enumerate(forms) if isinstance(form, Ensemble)]
        self._others = [j for j, form in enumerate(forms) if form is None]
        self._stack: CoefficientStack | None = None
        self._forest: Trees | None = None
        if self._linear:
            models = [form if isinstance(form, tuple) else None for form in forms]
            self._stack = CoefficientStack(models, n_classes=n_classes)
        if self._trees:
            self._forest = Trees([cast(Ensemble, forms[j]) for j in self._trees])
            self._codes = np.full((len(self._trees), n_classes), NO_VOTE)
            for row, j in zip(self._codes, self._trees, strict=True):
                codes = cast(Teacher, teachers[j]).model_codes()
                row[: len(codes)] = codes

    def ask(self, features: Any) -> Integers:
        """Return the votes, shape (n_teachers, n_queries)."""
        n = n_rows(features)
        dtype = np.int8 if self.n_classes <= 127 else np.int32
        votes = np.full((len(self.teachers), n), NO_VOTE, dtype=dtype)
        step = max(1, _BLOCK_CELLS // max(1, _n_columns(features)))
        for start in range(0, n, step):
            rows = slice(start, min(n, start + step))
            block = features if step >= n else _safe_indexing(features, rows)
            with teacher_surroundings():
                self._ask_block(block, votes[:, rows])
        return votes

    def ask_softly(self, features: Any) -> Integers:
        """Return probabilities in steps of 1/GRID, one row of points a teacher; all
        zero where a teacher has none.
        """
        n, shape = n_rows(features), (n_rows(features), self.n_classes)
        shares = np.zeros((len(self.teachers), *shape), dtype=np.uint8)
        numbers = _numbers(features) if self._stack and n else None
        quick = set(self._linear if numbers is not None else [])
        if self._stack and numbers is not None:
            for rows, found in self._stack.shares(numbers):
                shares[:, rows] = on_grid(found)
        with (
            Progress("Asking teachers", len(self.teachers)) as progress,
            teacher_surroundings(),
        ):
            # How many are asked together is private: the bar does not show it.
            for j, teacher in enumerate(self.teachers):
                if j in quick:
                    progress.advance(1)
                    continue
                seed_everything(j)
                with suppress(Exception):  # whatever it was, it is private
                    if teacher is not None and n:
                        own = _own_copy(teacher, features)
                        shares[j] = on_grid(teacher.probabilities(own, self.n_classes))
                progress.advance(1)
        return shares

    def _ask_block(self, block: Any, votes: Integers) -> None:
        """Write the votes on a block; teachers without a fast form are asked by
        predict, each with a copy that it may write to.
        """
        each = list(self._others)
        numbers = _numbers(block) if self._stack or self._forest else None
        if self._stack:
            if numbers is not None:
                self._stack.votes(numbers, votes)
            else:
                each += self._linear
        if self._forest:
            if numbers is not None and self._forest.accepts(numbers):
                own = self._forest.votes(numbers)
                votes[self._trees] = np.take_along_axis(self._codes, own, axis=1)
            else:
                each += self._trees
        with Progress("Asking teachers", len(self.teachers)) as progress:
            # How many teachers have votes at all is private: the bar does not show it.
            progress.advance(len(self.teachers) - len(each))
            for j in each:
                seed_everything(j)
                if (answer := _vote(self.teachers[j], block)) is not None:
                    votes[j] = answer
                progress.advance(1)


def _fast_form(
    teacher: Teacher | None, *, soft: bool
) -> tuple[Any, ...] | Ensemble | None:
    """Return a teacher's coefficients, or its trees if they are quick; else None.

    Where probabilities are asked for, only those of logistic regressions follow from
    coefficients.
    """
    from mapl.teachers import trees

    if teacher is None or teacher.model is None:
        return None
    try:
        if soft and not linear.has_softmax(teacher.model):
            return None
        if affine := linear.affine(teacher.model):
            return *affine, teacher.model_codes()
        if not soft and trees.can_read(teacher.model):
            ensemble = trees.Ensemble(teacher.model)
            return ensemble if ensemble.quick else None
    except Exception:
        return None  # the error is private
    return None


def _numbers(block: Any) -> Any:
    """Return the block as finite numbers, or None if it is something else."""
    if hasattr(block, "tocsr"):
        return None
    raw = np.asarray(block)
    try:
        numbers = raw.astype(np.float64, copy=False)
    except (TypeError, ValueError):
        return None
    # Beyond 2^53 integers are rounded on the way, and would be rounded twice.
    largest = np.inf if raw.dtype.kind == "f" else 2.0**53
    good = numbers.ndim == 2 and (np.abs(numbers) < largest).all()
    return numbers if good else None


def _vote(teacher: Teacher | None, features: Any) -> Ints | None:
    """Return the votes of one teacher; None if it has none, or not one for each row."""
    try:
        votes = None if teacher is None else teacher.vote(_own_copy(teacher, features))
    except Exception:
        return None
    return votes if votes is not None and len(votes) == n_rows(features) else None


def _own_copy(teacher: Teacher, features: Any) -> Any:
    """Return a copy for a model to read, which may write to it."""
    return features if teacher.model is None else copy_of(features)


def _n_columns(data: Any) -> int:
    shape: Any = getattr(data, "shape", ())
    return int(shape[1]) if len(shape) > 1 else 64  # texts: a guess
