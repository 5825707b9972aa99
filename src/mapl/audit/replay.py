"""A whole fit, redrawn: what it sums and counts is computed twice, noise many times.

Teachers and contributions depend on the records and on what was published. So one fit
is run and what it asked and published is kept; the fit with the canary gets the same
answers, and must ask the same; and for each draw only the mechanisms answer again, with
new noise.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from mapl.arrays import Array, Floats, Integers, Ints, same_numbers
from mapl.audit.mechanisms import Experiment
from mapl.audit.tradeoff import Claim
from mapl.audit.worlds import Data
from mapl.errors import ParameterError
from mapl.estimator import PrivateClassifier
from mapl.ledger.job import State
from mapl.methods.published import Published
from mapl.methods.votes import Panel
from mapl.planning.settings import Setting
from mapl.privacy.charged_dissent import ChargedDissent
from mapl.privacy.events import MomentsEvent
from mapl.privacy.moments import Moments, NoisySum
from mapl.privacy.noisy_max import NoisyMax
from mapl.privacy.questions import SoftQuestion, unpack
from mapl.privacy.soft_dissent import SoftDissent
from mapl.privacy.votes import Votes
from mapl.progress import Progress
from mapl.release.account import OneRelease, nobody_pays

_PACKED = b"\x78"  # how a question begins that is more than a name
_NUMBERS = 2**17  # that are drawn at once
_LOOKED_AT = 200  # points that two published models are compared on
_NEARLY_ALL = 0.9  # of the squared change of a sum
_SEGMENTS = 8  # of the questions to teachers, each with a score of its own


@dataclass(frozen=True)
class Sum:
    """A sum over records before noise, as a mechanism was asked to publish it."""

    total: Ints
    squared_length: int
    part: Fraction
    weight: int


@dataclass(frozen=True)
class Ballot:
    """Votes as a mechanism was asked about them."""

    votes: Votes
    guess: Ints | None


@dataclass(eq=False)
class Tape(OneRelease):
    """An account that keeps what is asked and answered; or, after a first fit, answers
    the same again. Equal answers must lead to equal questions, and to the same model.
    """

    first: Tape | None = None
    sums: list[Sum] = field(default_factory=list)
    ballots: list[Ballot] = field(default_factory=list)
    shares: list[Integers] = field(default_factory=list)
    questions: dict[int, bytes] = field(default_factory=dict)
    replies: dict[int, bytes] = field(default_factory=dict)
    published: list[Array] = field(default_factory=list)
    leak: str = ""

    def __post_init__(self) -> None:
        seed = secrets.randbits(32) if self.first is None else self.first.seed
        with nobody_pays():  # nothing leaves
            OneRelease.__init__(self, epsilon=1e9, delta=1e-5, seed=seed)

    def commit_question(self, step: int, state: State, question: bytes) -> None:
        """Keep a question; note whether the first fit asked something else."""
        self.questions[step] = question
        if self.first is not None and self.first.questions.get(step) != question:
            self.leak = self.leak or "what is asked depends on records without noise"

    def commit_reply(
        self, step: int, state: State, reply: bytes
    ) -> tuple[State, bytes]:
        """Keep a reply; return that of the first fit."""
        self.replies[step] = reply
        return state, reply if self.first is None else self.first.replies[step]

    def keep(self, published: Published, pool: Any) -> None:
        """Keep what a fit publishes at the end; note whether it differs."""
        points = pool if published.points is None else published.points.data
        shown = [published.labels, _opinion(published.student, points[:_LOOKED_AT])]
        if published.shares is not None:
            shown.append(published.shares)
        self.published = [np.asarray(one) for one in shown]
        if self.first is None or self.leak:
            return
        pairs = list(zip(self.first.published, self.published, strict=True))
        if not all(same_numbers(*pair) for pair in pairs):
            self.leak = "what is published depends on records without noise"

    @property
    def soft_question(self) -> SoftQuestion:
        """The question that teachers answered with probabilities."""
        packed = [q for q in self.questions.values() if q[:1] == _PACKED]
        found = [unpack(question) for question in packed]
        return next(one for one in found if isinstance(one, SoftQuestion))


class _TapedMoments(Moments):
    """Sums that are kept before they get noise."""

    tape: Tape

    def release(self, total: Ints, **how: Any) -> NoisySum:
        before = how.pop("before_draw", lambda: None)
        self.tape.sums.append(
            Sum(total, how["squared_length"], how["part"], how.get("weight", 1))
        )
        return super().release(total, before_draw=before, **how)


class _TapedDissent(ChargedDissent):
    """Votes that are kept before they are counted."""

    tape: Tape

    def answer(self, votes: Votes, guess: Any = None, **more: Any) -> Any:
        self.tape.ballots.append(Ballot(votes, guess))
        return super().answer(votes, guess, **more)


class _TapedMax(NoisyMax):
    """Votes that are kept before they are counted."""

    tape: Tape

    def answer(self, votes: Votes, *args: Any, **more: Any) -> Any:
        self.tape.ballots.append(Ballot(votes, None))
        return super().answer(votes, *args, **more)


@dataclass(frozen=True)
class _TapedPanel(Panel):
    """Teachers whose probabilities are kept."""

    tape: Tape

    def votes(self, *args: Any, soft: bool = False, **more: Any) -> Integers:
        found = super().votes(*args, soft=soft, **more)
        if soft:
            self.tape.shares.append(found)
        return found


_TAPED: dict[type, type] = {ChargedDissent: _TapedDissent, NoisyMax: _TapedMax}


@dataclass(frozen=True)
class _TapedSetting(Setting):
    """A setting whose mechanisms keep what they are asked."""

    tape: Tape

    def make_moments(self) -> Moments:
        made: Moments = self._taped(super().make_moments(), _TapedMoments)
        return made

    def make_mechanism(self) -> Any:
        made = super().make_mechanism()
        if type(made) not in _TAPED:
            raise ParameterError(
                f"A fit with mechanism {self.name!r} is not audited. Audit the "
                f"mechanism itself: mapl audit --mechanism {self.name}."
            )
        return self._taped(made, _TAPED[type(made)])

    def _taped(self, made: Any, kind: type) -> Any:
        """Return a new mechanism as one that keeps what it is asked."""
        made.__class__ = kind
        made.tape = self.tape
        return made


class _TapedClassifier(PrivateClassifier):
    """A classifier that charges a tape, and publishes nothing."""

    _tape: Tape

    def _publish(self, private: Any, table: Any, pool: Any) -> Any:
        assert self.plan_ is not None  # there are two classes
        setting = _TapedSetting(**vars(self.plan_), tape=self._tape)
        published = self._learn(private, table, pool, self._tape, setting)
        self._tape.keep(published, pool)
        return self

    def _panel(self) -> Panel:
        return _TapedPanel(**vars(super()._panel()), tape=self._tape)


def taped_fit(
    model: PrivateClassifier, data: Data, first: Tape | None
) -> tuple[Tape, Setting]:
    """Run a fit and return what was asked of the records; nothing leaves.

    After a ``first`` fit, what that one published is the answer again.
    """
    params = model.get_params(deep=False) | {"ledger": None, "dataset": None}
    taped = _TapedClassifier(**params)
    taped._tape = Tape(first)
    taped.fit(
        data.X,
        data.y.tolist(),
        X_public=data.X_public,
        groups=data.groups,
        allow_overlap=True,
    )
    assert taped.plan_ is not None
    return taped._tape, taped.plan_


class Replay(Experiment):
    """One fit's questions, answered with the canary and without.

    What is published of each question is scored by how much more probable it is with
    the canary; a score a question leaves.
    """

    def __init__(
        self, without: Tape, with_: Tape, setting: Setting, delta: float
    ) -> None:
        self.claim = Claim((setting.event,), delta)
        self._tapes, self._setting = {False: without, True: with_}, setting
        self.leak = with_.leak
        shape = [(one.total.shape, one.part) for one in without.sums]
        if shape != [(one.total.shape, one.part) for one in with_.sums]:
            raise ParameterError(
                "The two fits asked different things. Set random_state: an estimator "
                "or a student that draws at random may be the reason."
            )

    @property
    def known(self) -> list[Floats]:  # type: ignore[override]
        """The sum of all scores, and of the first ones."""
        n = len(self.once(False))
        return [(np.arange(n) < m).astype(float) for m in range(1, n + 1)]

    def once(self, present: bool) -> Any:
        """Draw once; return a score a question."""
        return self._draw(present, 1)[0]

    def draw(self, present: bool, n: int) -> Floats:
        """Draw n times, some at once: each a copy of its own."""
        world = "with" if present else "without"
        size = 1 + self._n_moved
        some = 1 if self._voted else max(1, min(n, _NUMBERS // size))
        found = []
        with Progress(f"Drawing {world} the canary", n) as progress:
            for start in range(0, n, some):
                found.append(self._draw(present, min(some, n - start)))
                progress.advance(len(found[-1]))
        return np.concatenate(found)

    @property
    def _n_moved(self) -> int:
        """How many numbers the canary changes in all."""
        pairs = zip(self._tapes[False].sums, self._tapes[True].sums, strict=True)
        return sum(len(_moved(in_.total - out.total)) for out, in_ in pairs)

    @property
    def _voted(self) -> bool:
        tape = self._tapes[False]
        return bool(tape.ballots or tape.shares)

    def _draw(self, present: bool, n: int) -> Floats:
        columns = []
        if isinstance(self._setting.event, MomentsEvent):
            columns += self._sums(present, n)
        if self._voted:
            columns += [np.array([s]) for s in self._votes(present)]
        return np.stack(columns, axis=1)

    def _sums(self, present: bool, n: int) -> list[Floats]:
        """Return the scores of the sums, of n copies."""
        event: Any = self._setting.event
        made = Moments(
            squared_shift=event.squared_shift, coordinates=n * event.coordinates
        )
        found = []
        without, with_ = self._tapes[False].sums, self._tapes[True].sums
        for out, in_ in zip(without, with_, strict=True):
            moved = _moved(in_.total - out.total)
            own = (in_ if present else out).total.reshape(-1)[moved]
            noisy = made.release(
                np.broadcast_to(own, (n, own.size)),
                squared_length=out.squared_length,
                part=out.part,
                weight=out.weight,
            )
            pair = [one.total.reshape(-1)[moved] / out.weight for one in (out, in_)]
            apart, middle = pair[1] - pair[0], (pair[0] + pair[1]) / 2
            score = ((noisy.total - middle) * apart).sum(axis=1)
            found.append(score / noisy.sigma**2)
        return found

    def _votes(self, present: bool) -> list[float]:
        """Return the scores of what teachers say."""
        if self._tapes[False].shares:
            return self._soft_votes(present)
        mechanism: Any = self._setting.make_mechanism()
        found = []
        pairs = zip(self._tapes[False].ballots, self._tapes[True].ballots, strict=True)
        for out, in_ in pairs:
            own = in_ if present else out
            asked = () if own.guess is None else (own.guess,)
            noisy = mechanism.answer(own.votes, *asked)
            apart = _dissents(in_) - _dissents(out)
            found += _by_segment(noisy.counts * apart)
        return found

    def _soft_votes(self, present: bool) -> list[float]:
        event: Any = self._setting.event
        asked = self._tapes[False].soft_question
        made = Moments(squared_shift=event.squared_shift, coordinates=1)
        shares = {world: tape.shares[0] for world, tape in self._tapes.items()}
        n_queries, n_classes = asked.guess.shape
        mechanism = SoftDissent(
            sigma=made.sigma(2 * asked.stock, asked.part),
            stock=asked.stock,
            n_teachers=len(shares[False]),
            n_classes=n_classes,
            n_queries=n_queries,
        )
        mean = mechanism.answer(shares[present], asked.guess)
        apart = shares[True].sum(axis=0, dtype=float) - shares[False].sum(
            axis=0, dtype=float
        )
        return _by_segment(mean * apart)


def _moved(apart: Ints) -> Ints:
    """Return which numbers of a sum hold nearly all of what the canary changes: the
    noise of the others would cost most of the time and tell next to nothing.
    """
    squares = apart.reshape(-1).astype(np.float64) ** 2
    order = np.argsort(-squares, kind="stable")
    before = np.cumsum(squares[order]) - squares[order]
    return np.sort(order[(before < _NEARLY_ALL * squares.sum())])


def _opinion(student: Any, points: Any) -> Any:
    """Return what a published model says of public points."""
    if hasattr(student, "predict_proba"):
        return student.predict_proba(points)
    return np.asarray(student.predict(points)).astype(str)


def _dissents(ballot: Ballot) -> Array:
    """Return how many teachers vote for each class, those who agree with the guess left
    out.
    """
    counts = ballot.votes.counts.astype(np.int64)
    if ballot.guess is not None:
        counts[np.arange(len(counts)), ballot.guess] = 0
    return counts


def _by_segment(scores: Floats) -> list[float]:
    """Return the sums of scores over parts of the queries, in their order."""
    rows = scores.sum(axis=1)
    return [float(part.sum()) for part in np.array_split(rows, _SEGMENTS)]
