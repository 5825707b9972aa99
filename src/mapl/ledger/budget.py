"""A budget that lasts as long as an object, and the fits that it is charged for.

It has the rules of a ledger (`mapl.ledger.rules`), and no database. While it is open,
in ``with Budget(...)``, its charges stand in a file: fits in other threads and
processes find it there, by the process that opened it.

Proof: docs/proofs/ledger.md, "Budgets"
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from mapl.errors import LedgerError
from mapl.ledger.files import fcntl, locked
from mapl.ledger.rules import Filter
from mapl.privacy.events import Event, from_json
from mapl.privacy.guard import Guard

if TYPE_CHECKING:
    from mapl.ledger.job import State, StoredStep

_CHARGES, _OPEN = "charges", "open"
_PROC = Path("/proc/self")


class InMemory:
    """What an account does that is forgotten with its process: it stores no step."""

    paid_before = False

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

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


class Budget(InMemory):
    """A budget in memory: it lasts as long as the object.

    Fits that start inside ``with Budget(...)`` are charged to it, beside their own
    limit: in this thread and in others, in processes that this one started, within
    other budgets, and with a ledger. What exceeds it is refused, and nothing is
    released. Releases add up as squared Gaussian shifts, like in a ledger, so each may
    be chosen after seeing the earlier ones.

    Parameters
    ----------
    epsilon, delta : float
        What may be charged.
    seed : int
        Seeds the private computation.

    Notes
    -----
    Guarantee: all releases together are (epsilon, delta)-DP, even if each is chosen
    after seeing the earlier ones.
    Proof: docs/proofs/ledger.md, "Budgets"

    Examples
    --------
    >>> from fractions import Fraction
    >>> from mapl import Budget
    >>> from mapl.privacy.events import GaussianEvent
    >>> budget = Budget(epsilon=1.0, delta=1e-5)
    >>> budget.charge(GaussianEvent(sigma=Fraction(50), steps=100))
    >>> round(budget.epsilon_spent, 2)
    0.74
    >>> round(budget.remaining(), 2)
    0.26
    """

    def __init__(self, *, epsilon: float, delta: float, seed: int = 0) -> None:
        super().__init__(seed)
        self._filter = Filter(epsilon=epsilon, delta=delta)
        self.epsilon, self.delta = self._filter.epsilon, self._filter.delta
        self._requests: set[str] = set()
        self._guard = Guard(type(self).__name__)
        self._place: Path | None = None
        self._read = 0  # bytes of the file of charges
        self._times_open, self._lock = 0, -1

    def __reduce__(self) -> NoReturn:
        self._guard.refuse_copy()

    @property
    def events(self) -> list[Event]:
        """What was charged so far."""
        with self._guard, self._charges():
            return list(self._filter.events)

    @property
    def epsilon_spent(self) -> float:
        """What all events charged so far cost at this delta."""
        with self._guard, self._charges():
            return self._filter.epsilon_spent

    def remaining(self) -> float:
        """Return the epsilon that is left, rounded down."""
        return max(0.0, self.epsilon - self.epsilon_spent)

    def check(self, event: Event) -> None:
        """Refuse an event that does not fit; charge nothing."""
        check_all([*self._others(), self], event)

    def _check_here(self, event: Event, request: str) -> None:
        with self._guard, self._charges():
            if not request or request not in self._requests:
                self._filter.price(event)

    def charge(self, event: Event, *, request: str = "") -> None:
        """Charge an event, or refuse it and change nothing; here and, if others are
        open, there.

        What has a ``request`` is charged once: the same one again gets the same answer.
        """
        budgets = [*self._others(), self]
        check_all(budgets, event, request=request)
        charge_all(budgets, event, request=request)

    def _charge_here(self, event: Event, request: str) -> None:
        with self._guard, self._charges() as file:
            if request and request in self._requests:
                return
            price = self._filter.price(event)
            if file is not None:
                line = _line(event, price, request)
                os.pwrite(file, line, self._read)
                self._read += len(line)
            self._filter.add(event, price)
            self._requests.add(request)

    def _others(self) -> list[Budget]:
        own = self._place
        return [b for b in open_budgets() if b is not self and b._place != own]

    def receipt(self) -> str:
        """Return what a certificate says of the account."""
        return receipt_of([self])

    # Open to fits elsewhere ---------------------------------------------------------

    def __enter__(self) -> Budget:
        with self._guard:
            self._times_open += 1
            if self._place is None:
                self._open()
        return self

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._times_open -= 1
            if not self._times_open:
                self._close()

    def _open(self) -> None:
        """Write the charges to a folder that says whose process this is."""
        if fcntl is None:
            raise LedgerError(
                "An open budget needs the file locks of Linux or macOS, which this "
                "system lacks."
            )
        limits = {"epsilon": self.epsilon, "delta": self.delta}
        lines = json.dumps(limits).encode() + b"\n"
        lines += b"".join(_line(*each, "") for each in self._filter.charged)
        name = f"{os.getpid()}-{secrets.token_hex(8)}"
        new, place = _folder() / f"new-{name}", _folder() / name
        try:
            place.parent.mkdir(mode=0o700, exist_ok=True)
            if not _is_our_own(place.parent):
                raise PermissionError(0, "it belongs to others, too")
            new.mkdir(mode=0o700)
            self._lock = os.open(new / _OPEN, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            (new / _CHARGES).write_bytes(lines)
            new.rename(place)  # open from here on
        except OSError as error:
            raise LedgerError(
                f"{place.parent} cannot be used ({error.strerror}), so fits in other "
                "processes would not be charged. Make it a folder of yours alone."
            ) from None
        self._place, self._read = place, len(lines)
        _entered.append(self)

    def _close(self) -> None:
        with self._charges():  # what others charged
            _entered.remove(self)
        place, self._place = self._place, None
        assert place is not None
        # A process that was forked from this one holds the same lock.
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        os.close(self._lock)
        shutil.rmtree(place, ignore_errors=True)

    @classmethod
    def _joined(cls, place: Path) -> Budget:
        """Return a budget that another process opened."""
        with open(place / _CHARGES, "rb") as file:
            head = file.readline()
        found = cls(**json.loads(head))
        found._place, found._read = place, len(head)
        return found

    @contextmanager
    def _charges(self) -> Iterator[int | None]:
        """Hold the file of charges, if there is one, when it was read."""
        if self._place is None:
            yield None
            return
        try:
            file = os.open(self._place / _CHARGES, os.O_RDWR)
        except OSError:
            raise LedgerError(
                "The budget that this fit is charged to was closed in the meantime. "
                "Wait for all fits before the end of its block. Nothing was released."
            ) from None
        try:
            with locked(file):
                self._take_new(file)
                yield file
        finally:
            os.close(file)

    def _take_new(self, file: int) -> None:
        """Read what others charged; a line without an end was cut off by a kill, before
        anything was released.
        """
        size = os.fstat(file).st_size
        data = os.pread(file, size - self._read, self._read)
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.ftruncate(file, self._read + len(whole))
        self._read += len(whole)
        for line in whole.splitlines():
            charged = json.loads(line)
            loss, leak = charged["price"]
            self._filter.add(from_json(charged["event"]), (loss, leak))
            self._requests.add(charged["request"])


def _line(event: Event, price: tuple[int, int], request: str) -> bytes:
    """Return a charge as a line of a file."""
    found = {"event": event.to_json(), "price": price, "request": request}
    return json.dumps(found).encode() + b"\n"


def check_all(budgets: Sequence[Budget], event: Event, *, request: str = "") -> None:
    """Refuse an event that does not fit into one of several budgets."""
    for budget in budgets:
        budget._check_here(event, request)


def charge_all(budgets: Sequence[Budget], event: Event, *, request: str = "") -> None:
    """Charge several budgets, or refuse; nothing is released in between."""
    for budget in budgets:
        budget._charge_here(event, request)


def receipt_of(budgets: Sequence[Budget]) -> str:
    """Return what a certificate says where the budget is in memory."""
    if budgets:
        whole = budgets[-1]
        return (
            f"in memory: of a budget of epsilon {whole.epsilon:g}, delta "
            f"{whole.delta:g}, that was not kept"
        )
    return "in memory: this budget is of this fit alone, and is not kept"


# Which budgets are open -------------------------------------------------------------

_entered: list[Budget] = []  # by this process
getattr(os, "register_at_fork", lambda **_: None)(after_in_child=_entered.clear)
_free: ContextVar[bool] = ContextVar("_free", default=False)


@contextmanager
def nobody_pays() -> Iterator[None]:
    """Fit without charging an open budget: for fits of which nothing leaves."""
    token = _free.set(True)
    try:
        yield
    finally:
        _free.reset(token)


def open_budgets(sent: Sequence[str] = ()) -> list[Budget]:
    """Return all budgets that a fit is charged to that starts now, the last one opened
    last.

    They are those of this process, whatever thread opened them, those of the processes
    that it comes from, and those that were ``sent`` along with the classifier.
    """
    if _free.get():
        return []
    own = {budget._place for budget in _entered}
    wanted = {Path(place): None for place in sent}
    missing = [place for place in wanted if place not in own and not _is_open(place)]
    if missing:
        raise LedgerError(
            "This classifier comes from a Budget that is closed, or on another "
            "machine, so its fit cannot be charged there. Make a new one: "
            "sklearn.base.clone(model). Nothing was released."
        )
    wanted |= dict.fromkeys(_of_ancestors())
    return [Budget._joined(place) for place in wanted if place not in own] + _entered


class CarriesBudgets:
    """A mixin for a classifier: a pickle of it names the budgets that are open, for a
    process that would not find them itself.
    """

    carried_budgets: Sequence[str] = ()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(cast(Any, super()).__getstate__())
        state.pop("carried_budgets", None)
        places = [str(budget._place) for budget in open_budgets(self.carried_budgets)]
        return state | ({"carried_budgets": places} if places else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        places = [Path(place) for place in state.pop("carried_budgets", ())]
        cast(Any, super()).__setstate__(state)
        own = str(os.getpid())  # which finds its own budgets
        others = [str(p) for p in places if p.name.partition("-")[0] != own]
        if others:
            self.carried_budgets = others


def _folder() -> Path:
    """Return where this user's open budgets are: whatever the environment says, since
    that of an older process may say something else.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    return Path("/tmp") / f"mapl-budgets-{user}"  # noqa: S108 - checked to be our own


def _is_our_own(folder: Path) -> bool:
    """Whether a folder belongs to this user alone."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and (found.st_uid, found.st_mode & 0o77) == (
        os.getuid(),
        0,
    )


def _of_ancestors() -> list[Path]:
    """Return the open budgets of the processes that this one comes from."""
    try:
        places = sorted(_folder().iterdir()) if _is_our_own(_folder()) else []
    except OSError:
        return []
    above = _ancestors() if places else set()
    found = []
    for place in places:
        process = place.name.partition("-")[0]
        if process.isdigit() and int(process) in above and _is_open(place):
            found.append(place)
        elif process.isdigit() and not _is_open(place):
            shutil.rmtree(place, ignore_errors=True)  # of a process that was killed
    return found


def _is_open(place: Path) -> bool:
    """Whether somebody holds the lock of an open budget."""
    try:
        file = os.open(place / _OPEN, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def _ancestors() -> set[int]:
    """Return the numbers of the processes that this one comes from."""
    found: set[int] = set()
    process = os.getppid()
    while process > 0 and process not in found:
        found.add(process)
        process = _parent_of(process)
    return found


def _parent_of(process: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        if _PROC.exists():
            shown = (_PROC.parent / str(process) / "stat").read_text()
            return int(shown.rpartition(")")[2].split()[1])
        command = ["ps", "-o", "ppid=", "-p", str(process)]
        done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
        return int(done.stdout)
    return 0
