"""Who is charged for a release: a budget in memory, or a job in a ledger.

An account is charged before any noise is drawn, and nothing is ever refunded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from mapl.arrays import Words
from mapl.errors import ParameterError, hide_passwords, positive, probability
from mapl.ledger.rules import check_composition
from mapl.privacy import accounting
from mapl.privacy.events import Event
from mapl.privacy.guard import Guard

if TYPE_CHECKING:
    from mapl.ledger.job import State, StoredStep
    from mapl.teachers.voting import Checkpoints


class Account(Protocol):
    """What a release needs of whoever is charged for it.

    ``events`` were charged. ``paid_before`` says whether an earlier run of the same job
    was charged, so that this one is free. ``seed`` seeds the private computation; a job
    that was begun before keeps its own.
    """

    events: list[Event]
    paid_before: bool
    seed: int

    def check(self, event: Event) -> None:
        """Refuse an event that does not fit; charge nothing."""

    def charge(self, event: Event) -> None:
        """Charge an event, or refuse it and change nothing."""

    def stored_step(self, step: int) -> StoredStep | None:
        """Return what an earlier run of the same job committed of a step."""

    def commit_question(self, step: int, state: State, question: bytes) -> None:
        """Commit what is asked and the state of the mechanism, before the noise."""

    def commit_reply(
        self, step: int, state: State, reply: bytes
    ) -> tuple[State, bytes]:
        """Commit a reply before it leaves; return what was committed first."""

    def checkpoints(self) -> AbstractContextManager[Checkpoints | None]:
        """Where finished votes are kept, if the account outlives a crash."""

    def receipt(self) -> str | dict[str, Any]:
        """Return what a certificate says of the account: a sentence, or for a ledger
        its id, the data set and the rows. Public.
        """


class Budget:
    """An account in memory: it lasts as long as the object.

    Fits inside ``with Budget(...)`` are charged to it, beside their own limit; what
    exceeds it is refused, and nothing is released.

    Parameters
    ----------
    epsilon, delta : float
        What may be charged.
    seed : int
        Seeds the private computation.
    within : Budget or None
        One that pays, too.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from mapl.privacy.events import GaussianEvent
    >>> from mapl.release.account import Budget
    >>> budget = Budget(epsilon=1.0, delta=1e-5)
    >>> budget.charge(GaussianEvent(sigma=Fraction(50), steps=100))
    >>> round(budget.epsilon_spent, 2)
    0.73
    >>> round(budget.remaining(), 2)
    0.27
    """

    paid_before = False

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        seed: int = 0,
        within: Budget | None = None,
    ) -> None:
        self.epsilon = positive(epsilon=epsilon)
        self.delta = probability(delta=delta)
        self.seed, self._within = seed, within
        self._tokens: list[Token[Budget | None]] = []
        self.events: list[Event] = []
        self._guard = Guard(type(self).__name__)

    def __reduce__(self) -> NoReturn:
        self._guard.refuse_copy()

    @property
    def epsilon_spent(self) -> float:
        """What all events charged so far cost at this delta."""
        return accounting.epsilon(self.events, delta=self.delta)

    def remaining(self) -> float:
        """Return the epsilon that is left, rounded down."""
        return max(0.0, self.epsilon - self.epsilon_spent)

    def __enter__(self) -> Budget:
        self._tokens.append(_paying.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _paying.reset(self._tokens.pop())

    def check(self, event: Event) -> None:
        """Refuse an event that does not fit; charge nothing."""
        check_composition(self.events, event, epsilon=self.epsilon, delta=self.delta)
        if self._within is not None:
            self._within.check(event)

    def charge(self, event: Event) -> None:
        """Charge an event, or refuse it and change nothing."""
        with self._guard:
            self.check(event)
            if self._within is not None:
                self._within.charge(event)
            self.events.append(event)

    def stored_step(self, step: int) -> StoredStep | None:
        """Return None: nothing is stored."""
        return None

    def commit_question(self, step: int, state: State, question: bytes) -> None:
        """Do nothing: a crash loses the answer too."""

    def commit_reply(
        self, step: int, state: State, reply: bytes
    ) -> tuple[State, bytes]:
        """Return state and reply as they are."""
        return state, reply

    @contextmanager
    def checkpoints(self) -> Iterator[None]:
        """Provide none: nothing survives a crash."""
        yield None

    def receipt(self) -> str:
        """Return what a certificate says of the account."""
        if self._within is not None:
            whole = self._within
            return (
                f"in memory: of a budget of epsilon {whole.epsilon:g}, delta "
                f"{whole.delta:g}, that was not kept"
            )
        return "in memory: this budget is of this fit alone, and is not kept"


_paying: ContextVar[Budget | None] = ContextVar("_paying", default=None)


@contextmanager
def nobody_pays() -> Iterator[None]:
    """Fit without charging a surrounding budget: for fits of which nothing leaves."""
    token = _paying.set(None)
    try:
        yield
    finally:
        _paying.reset(token)


def check_ledger(ledger: str | None, dataset: str | None) -> None:
    """Refuse a ledger without a data set, and the other way round."""
    if (ledger is None) != (dataset is None):
        raise ParameterError(
            "ledger and dataset must be given together: where the budget is kept, and "
            "under which name."
        )
    if ledger is not None and hide_passwords(ledger) != ledger:
        raise ParameterError(
            "ledger must hold no password: it would be shown with the parameters. Set "
            "PGPASSWORD, or use ~/.pgpass."
        )


def open_account(
    *,
    epsilon: float,
    delta: float,
    ledger: str | None,
    dataset: str | None,
    request: bytes,
    note: str,
    seed: int,
    keys: Callable[[], Words],
    assignment: Callable[[int], bytes],
    quiet: bool = False,
) -> Account:
    """Open the account that a release is charged to.

    ``epsilon`` and ``delta`` limit a budget in memory; a ledger has its own limits, and
    states prices at this delta. ``request`` is everything that identifies the release,
    ``note`` is for the ledger's history: public values only. ``seed`` seeds the private
    computation, unless the same job was begun before. ``keys`` returns digests of the
    records, by which the ledger notices a mix-up; ``assignment`` returns, for a seed, a
    digest of which record is in which chunk: a job goes on with that one alone.
    ``quiet`` is for fits that others can see: no warning compares records.
    """
    check_ledger(ledger, dataset)
    if ledger is None:
        limits = {"epsilon": epsilon, "delta": delta}
        return Budget(**limits, seed=seed, within=_paying.get())
    from mapl.ledger.ledger import Ledger

    opened = Ledger(ledger)
    job = opened.job(str(dataset), request, delta=delta, what=note)
    digest = opened.records_digest(keys())
    job.begin(seed, data=digest, assignment=assignment, quiet=quiet)
    return job
