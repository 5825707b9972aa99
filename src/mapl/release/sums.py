"""Private records in, noisy sums out: charged once, asked step by step.

A step that an earlier run of the job has finished is not asked again: its stored reply
is returned. One that was begun goes on with the question that it began with.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Protocol, TypeVar

import numpy as np

from mapl.arrays import Floats, Integers, Ints
from mapl.errors import MechanismStateError
from mapl.features.contributions import ONE, Source
from mapl.features.passes import (
    COUNT_LENGTH,
    Copula,
    Counts,
    Gradient,
    Gram,
    Histograms,
    Labels,
    Pass,
    Stacking,
)
from mapl.features.sketch import Sketch, SketchForm
from mapl.privacy.gradients import RESIDUAL_GRID
from mapl.privacy.linear_map import LinearMap
from mapl.privacy.moments import WEIGHT, Moments, NoisySum, check_squared_length
from mapl.privacy.questions import (
    CopulaQuestion,
    GramQuestion,
    Question,
    SoftQuestion,
    StackQuestion,
    pack,
    unpack,
)
from mapl.privacy.soft_dissent import GRID, SoftDissent
from mapl.release.account import Account

_Asked = TypeVar(
    "_Asked", Question, StackQuestion, SoftQuestion, GramQuestion, CopulaQuestion
)


class Records(Protocol):
    """Private records that can be added up, in memory or not."""

    feature_map: Any

    @property
    def grouped(self) -> bool:
        """Whether a unit may have several records."""

    def total(self, asked: Pass) -> Ints:
        """Return the total of a pass over all records."""


class Summer:
    """Publishes sums over private records with one mechanism.

    The account is charged with the mechanism's whole price when it is opened.
    """

    def __init__(self, records: Records, account: Account) -> None:
        self._records, self.account = records, account
        self._mechanism: Moments | None = None
        self.step, self._failed = 0, False

    def open(self, mechanism: Moments) -> None:
        """Charge the whole price of a mechanism; from then on it may answer."""
        if self._mechanism is not None:
            raise MechanismStateError("This summer has an open mechanism already.")
        self.account.charge(mechanism.event)
        self._mechanism = mechanism

    def count(self, n_classes: int, part: Fraction) -> tuple[Floats, float]:
        """Return about how many units of each class there are, and the noise."""
        answer = self._answer(Counts(n_classes), ONE, COUNT_LENGTH, part)
        noisy = self._next(b"count", lambda _: answer)
        unit = float(ONE.matrices[0][0, 0]) * RESIDUAL_GRID
        return np.asarray(noisy.total[0] / unit), noisy.sigma / unit

    def gradient(self, question: Question) -> tuple[Question, NoisySum]:
        """Return the noisy gradient, with the question that it answers."""

        def sum_of(asked: Question) -> Any:
            linear_map = self._records.feature_map.linear_map
            length = asked.squared_length
            return self._answer(Gradient(asked), linear_map, length, asked.part)

        return self._ask(question, sum_of)

    def stacked(
        self, sources: list[Source], question: StackQuestion
    ) -> tuple[StackQuestion, NoisySum]:
        """Return the noisy gradient of weights for several models' logits.

        The same list of models must be given each time.
        """

        def sum_of(asked: StackQuestion) -> Any:
            wanted = Stacking(sources, asked)
            return self._answer(wanted, ONE, asked.squared_length, asked.part)

        return self._ask(question, sum_of)

    def labels(self, *, columns: int, squared_length: int, part: Fraction) -> NoisySum:
        """Return the noisy sum of each record's features, class by class, where labels
        alone are private.
        """
        wanted = Labels(columns, squared_length)
        linear_map = self._records.feature_map.linear_map
        answer = self._answer(wanted, linear_map, squared_length, part, labels=True)
        question = repr(("labels", columns, squared_length, part)).encode()
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

        def answer(mechanism: Moments, commit: Callable[[], None]) -> NoisySum:
            wanted = Histograms(form.sizes)
            counts = wanted.split(self._records.total(wanted))
            return mechanism.release(
                form.total(counts),
                squared_length=form.squared_length,
                part=part,
                weight=self._weight,
                before_draw=commit,
            )

        question = repr(("sketch", form, part)).encode()
        return form.read(self._next(question, lambda _: answer))

    def copula(self, question: CopulaQuestion) -> tuple[CopulaQuestion, NoisySum]:
        """Return the noisy sum of z z' over the records, z being what each of their
        cells says.
        """
        return self._ask(question, lambda asked: self._pairs(Copula(asked)))

    def gram(self, question: GramQuestion) -> tuple[GramQuestion, NoisySum]:
        """Return the noisy sum of q z z' over the records and classes, z being the
        logits that the pieces of a step add, and q the model's probabilities.
        """
        return self._ask(question, lambda asked: self._pairs(Gram(asked)))

    def _pairs(self, wanted: Copula | Gram) -> Any:
        """Return what adds up outer products and publishes the sum."""

        def answer(mechanism: Moments, commit: Callable[[], None]) -> NoisySum:
            return mechanism.release(
                self._records.total(wanted),
                squared_length=wanted.question.squared_length,
                part=wanted.question.part,
                weight=self._weight,
                before_draw=commit,
            )

        return answer

    @property
    def _weight(self) -> int:
        """What a unit's contribution to cells and pairs is multiplied by."""
        return WEIGHT if self._records.grouped else 1

    def _answer(
        self,
        wanted: Pass,
        linear_map: LinearMap,
        squared_length: int,
        part: Fraction,
        *,
        labels: bool = False,
    ) -> Callable[[Moments, Callable[[], None]], NoisySum]:
        """Return what adds up contributions and publishes the sum."""

        def answer(mechanism: Moments, commit: Callable[[], None]) -> NoisySum:
            check_squared_length(squared_length)
            return mechanism.answer_sum(
                self._records.total(wanted),
                linear_map,
                squared_length=squared_length,
                part=part,
                grouped=self._records.grouped,
                labels_only=labels,
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
