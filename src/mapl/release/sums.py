"""Private records in, noisy sums out: charged once, asked step by step.

A step that an earlier run of the job has finished is not asked again: its stored reply
is returned. One that was begun goes on with the question that it began with.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from mapl.arrays import Floats, Integers, Singles
from mapl.errors import MechanismStateError
from mapl.features.cell_records import CellContributions
from mapl.features.contributions import ONE, Contributions, Source
from mapl.features.sketch import Sketch, SketchForm
from mapl.privacy.gradients import RESIDUAL_GRID
from mapl.privacy.moments import WEIGHT, Block, LinearMap, Moments, NoisySum
from mapl.privacy.pairs import bounded_pair_sum
from mapl.privacy.questions import (
    PairQuestion,
    Question,
    SoftQuestion,
    StackQuestion,
    pack,
    unpack,
)
from mapl.privacy.soft_dissent import GRID, SoftDissent
from mapl.release.account import Account

_Asked = TypeVar("_Asked", Question, StackQuestion, SoftQuestion, PairQuestion)
_COUNT_LENGTH = RESIDUAL_GRID**2  # squared: a 1, times the map of constants


class Summer:
    """Publishes sums over private records with one mechanism.

    The account is charged with the mechanism's whole price when it is opened.
    """

    def __init__(self, contributions: Contributions, account: Account) -> None:
        self._contributions, self.account = contributions, account
        self._mechanism: Moments | None = None
        self.step, self._failed = 0, False
        self._logits: list[list[Singles]] | None = None

    def open(self, mechanism: Moments) -> None:
        """Charge the whole price of a mechanism; from then on it may answer."""
        if self._mechanism is not None:
            raise MechanismStateError("This summer has an open mechanism already.")
        self.account.charge(mechanism.event)
        self._mechanism = mechanism

    def count(self, n_classes: int, part: Fraction) -> tuple[Floats, float]:
        """Return about how many units of each class there are, and the noise."""

        def answer(mechanism: Moments, commit: Callable[[], None]) -> NoisySum:
            return mechanism.answer(
                self._contributions.counts(n_classes),
                ONE,
                squared_length=_COUNT_LENGTH,
                part=part,
                columns=n_classes,
                grouped=self._contributions.grouped,
                before_draw=commit,
            )

        noisy = self._next(b"count", lambda _: answer)
        unit = float(ONE.matrices[0][0, 0]) * RESIDUAL_GRID
        return np.asarray(noisy.total[0] / unit), noisy.sigma / unit

    def gradient(self, question: Question) -> tuple[Question, NoisySum]:
        """Return the noisy gradient, with the question that it answers."""
        return self._ask(question, self._gradient_of)

    def stacked(
        self, sources: list[Source], question: StackQuestion
    ) -> tuple[StackQuestion, NoisySum]:
        """Return the noisy gradient of weights for several models' logits.

        The same list of models must be given each time.
        """

        def sum_of(asked: StackQuestion) -> Any:
            if self._logits is None:
                with np.errstate(all="ignore"):
                    self._logits = self._contributions.logits(sources)
            columns = len(asked.scales) + len(asked.biases)
            blocks = self._contributions.stacked(self._logits, asked)
            return self._sum_of(asked, blocks, ONE, columns)

        return self._ask(question, sum_of)

    def labels(
        self, *, waves: int, columns: int, squared_length: int, part: Fraction
    ) -> NoisySum:
        """Return the noisy sum of each record's features, class by class, where labels
        alone are private.
        """
        linear_map = self._contributions.feature_map.linear_map(waves)

        def answer(mechanism: Moments, commit: Callable[[], None]) -> NoisySum:
            return mechanism.answer(
                self._contributions.label_codes(waves, columns, RESIDUAL_GRID),
                linear_map,
                squared_length=squared_length,
                part=part,
                columns=columns,
                labels_only=True,
                before_draw=commit,
            )

        question = repr(("labels", waves, columns, squared_length, part)).encode()
        return self._next(question, lambda _: answer)

    def soft_votes(
        self, shares: Integers, question: SoftQuestion
    ) -> tuple[SoftQuestion, NoisySum]:
        """Return teachers' mean probabilities, paid for by a part of the budget.

        Their squared shifts add up with those of sums. Proof:
        docs/proofs/smoothing.md, "Joining"
        """

        def sum_of(asked: SoftQuestion) -> Any:
            def answer(moments: Moments, commit: Callable[[], None]) -> NoisySum:
                n_queries, n_classes = asked.guess.shape
                mechanism = SoftDissent(
                    sigma=moments.sigma(2 * asked.stock, asked.part),
                    stock=asked.stock,
                    n_teachers=len(shares),
                    n_classes=n_classes,
                    n_queries=n_queries,
                )
                moments.take(asked.part, mechanism.event.coordinates)
                mean = mechanism.answer(shares, asked.guess, before_draw=commit)
                return NoisySum(mean, float(mechanism.sigma) / (GRID * len(shares)))

            return answer

        return self._ask(question, sum_of)

    def sketch(self, form: SketchForm, part: Fraction) -> Sketch:
        """Return how columns and labels look after noise, for a part of the budget."""
        records = self._cell_records()

        def answer(mechanism: Moments, commit: Callable[[], None]) -> NoisySum:
            counts, weight = records.histograms(form.sizes)
            return mechanism.release(
                form.total(counts),
                squared_length=form.squared_length,
                part=part,
                weight=weight,
                before_draw=commit,
            )

        question = repr(("sketch", form, part)).encode()
        return form.read(self._next(question, lambda _: answer))

    def pairs(self, question: PairQuestion) -> tuple[PairQuestion, NoisySum]:
        """Return for each class the noisy sum of q z z' over the records, z being their
        logits by the pieces of a step and q the curvature of the model.
        """
        records = self._cell_records()

        def sum_of(asked: PairQuestion) -> Any:
            def answer(mechanism: Moments, commit: Callable[[], None]) -> NoisySum:
                n_pieces = len(records.feature_map.sizes)
                total = np.zeros((n_pieces, n_pieces), dtype=np.int64)
                grouped, limit = records.grouped, asked.squared_length
                for block in records.pairs(asked):
                    total += bounded_pair_sum(block, limit, grouped=grouped)
                return mechanism.release(
                    total,
                    squared_length=limit,
                    part=asked.part,
                    weight=WEIGHT if grouped else 1,
                    before_draw=commit,
                )

            return answer

        return self._ask(question, sum_of)

    def _cell_records(self) -> CellContributions:
        if not isinstance(self._contributions, CellContributions):
            raise MechanismStateError("These records have no cells.")
        return self._contributions

    def _gradient_of(self, asked: Question) -> Any:
        linear_map = self._contributions.feature_map.linear_map(asked.waves)
        blocks = self._contributions.gradients(asked)
        return self._sum_of(asked, blocks, linear_map, asked.weights.shape[1])

    def _sum_of(
        self,
        asked: Question | StackQuestion,
        blocks: Iterator[Block],
        linear_map: LinearMap,
        columns: int,
    ) -> Callable[[Moments, Callable[[], None]], NoisySum]:
        def answer(mechanism: Moments, commit: Callable[[], None]) -> NoisySum:
            return mechanism.answer(
                blocks,
                linear_map,
                squared_length=asked.squared_length,
                part=asked.part,
                columns=columns,
                grouped=self._contributions.grouped,
                before_draw=commit,
            )

        return answer

    def _ask(
        self, question: _Asked, sum_of: Callable[[_Asked], Any]
    ) -> tuple[_Asked, NoisySum]:
        asked = [question]

        def begun(stored: bytes | None) -> Any:
            if stored is not None:
                asked[0] = unpack(stored)
            return sum_of(asked[0])

        noisy = self._next(pack(question), begun)
        return asked[0], noisy

    def _next(self, question: bytes, begun: Callable[[bytes | None], Any]) -> NoisySum:
        """Answer the next step, or return what was stored of it.

        None follows a failed one, whose effect on the mechanism is unknown.
        """
        mechanism = self._mechanism
        if mechanism is None or self._failed:
            raise MechanismStateError(
                "There is no open mechanism, or an earlier step failed. Make a new "
                "one: it goes on from what was committed."
            )
        self._failed = True
        self.step += 1
        stored = self.account.stored_step(self.step)
        answer = begun(None if stored is None else stored.question)
        if stored is not None and stored.reply is not None:
            state, reply = stored.state, stored.reply
        else:
            asked = question if stored is None else stored.question

            def commit() -> None:
                self.account.commit_question(self.step, mechanism.state(), asked)

            with np.errstate(all="ignore"):  # no warning tells of a private value
                noisy = answer(mechanism, commit)
            state, reply = self.account.commit_reply(
                self.step, mechanism.state(), _pack_sum(noisy)
            )
        mechanism.resume(state)
        self._failed = False
        return _unpack_sum(reply)

    def __repr__(self) -> str:
        return "Summer()"


def _pack_sum(noisy: NoisySum) -> bytes:
    file = io.BytesIO()
    np.savez(file, total=noisy.total, sigma=noisy.sigma)
    return zlib.compress(file.getvalue(), 1)


def _unpack_sum(data: bytes) -> NoisySum:
    loaded = np.load(io.BytesIO(zlib.decompress(data)), allow_pickle=False)
    return NoisySum(loaded["total"], float(loaded["sigma"]))
