"""Who is charged for a release: a job in a ledger, or a budget in memory.

An account is charged before any noise is drawn, and nothing is ever refunded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from mapl.arrays import Words
from mapl.errors import (
    MechanismStateError,
    ParameterError,
    hide_passwords,
    positive,
    probability,
)
from mapl.ledger.budget import (
    Budget,
    InMemory,
    charge_all,
    check_all,
    nobody_pays,
    payers,
    receipt_of,
)
from mapl.ledger.rules import check_alone
from mapl.privacy.events import Event

if TYPE_CHECKING:
    from mapl.ledger.job import State, StoredStep
    from mapl.teachers.voting import Checkpoints

__all__ = ["Account", "Budget", "OneRelease", "nobody_pays", "open_account"]


class Account(Protocol):
    """What a release needs of whoever is charged for it.

    ``paid_before`` says whether an earlier run of the same job
    was charged, so that this one is free. ``seed`` seeds the private computation; a job
    that was begun before keeps its own.
    """

    paid_before: bool
    seed: int

    @property
    def events(self) -> list[Event]:
        """What was charged."""

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


class OneRelease(InMemory):
    """An account for one release: it has a limit of its own, and open budgets pay."""

    def __init__(self, *, epsilon: float, delta: float, seed: int = 0) -> None:
        super().__init__(seed)
        self.epsilon = positive(epsilon=epsilon)
        self.delta = probability(delta=delta)
        self.events: list[Event] = []
        self._payers = payers()

    def check(self, event: Event) -> None:
        """Refuse an event that does not fit; charge nothing."""
        if self.events:
            raise MechanismStateError("This account was charged for its one release.")
        check_alone(event, epsilon=self.epsilon, delta=self.delta)
        check_all(self._payers, event)

    def charge(self, event: Event) -> None:
        """Charge an event, or refuse it and change nothing."""
        self.check(event)
        charge_all(self._payers, event)
        self.events.append(event)

    def receipt(self) -> str:
        """Return what a certificate says of the account."""
        return receipt_of(self._payers)


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
        return OneRelease(**limits, seed=seed)
    from mapl.ledger.ledger import Ledger

    opened = Ledger(ledger)
    job = opened.job(str(dataset), request, delta=delta, what=note)
    digest = opened.records_digest(keys())
    job.begin(seed, data=digest, assignment=assignment, quiet=quiet)
    return job
