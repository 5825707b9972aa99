"""A budget that lasts as long as an object, and the fits that it is charged for.

It has the rules of a ledger (`mapl.ledger.rules`), and no database. While it is open,
in ``with Budget(...)``, its charges stand in a file: fits in other threads and
processes find it there, by the process that opened it. What cannot be looked up is an
error, never "no budget".

Proof: docs/proofs/ledger.md, "Budgets"
"""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, cast

from mapl.errors import LedgerError
from mapl.ledger.files import fcntl, locked
from mapl.ledger.rules import Charge, Filter
from mapl.privacy.events import Event, from_json
from mapl.privacy.guard import Guard

if TYPE_CHECKING:
    from mapl.ledger.job import State, StoredStep

_CHARGES, _OPEN = "charges", "open"
_NAME = re.compile("([0-9]+)-([0-9]+)-[0-9a-f]{16}")  # process, its namespace, a token
_PROC = Path("/proc")


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


@dataclass(frozen=True)
class _Known:
    """What this process knows of the charges: replaced as a whole, so that nothing that
    interrupts it leaves half of a charge.
    """

    filter: Filter
    read: int = 0  # bytes of the file


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
    0.73
    >>> round(budget.remaining(), 2)
    0.27
    """

    def __init__(self, *, epsilon: float, delta: float, seed: int = 0) -> None:
        super().__init__(seed)
        self._known = _Known(Filter.of(epsilon=epsilon, delta=delta))
        self.epsilon, self.delta = float(epsilon), float(delta)
        self._guard = Guard(type(self).__name__)
        self._place: Path | None = None
        self._times_open, self._lock = 0, -1

    def __reduce__(self) -> NoReturn:
        self._guard.refuse_copy()

    @property
    def events(self) -> list[Event]:
        """What was charged so far."""
        with self._charges():
            return [charge.event for charge in self._known.filter.charged]

    @property
    def epsilon_spent(self) -> float:
        """What all events charged so far cost at this delta."""
        with self._charges():
            return self._known.filter.epsilon_spent

    def remaining(self) -> float:
        """Return the epsilon that is left, rounded down."""
        with self._charges():
            return self._known.filter.remaining

    def check(self, event: Event) -> None:
        """Refuse an event that does not fit; charge nothing."""
        check_all([*self._others(), self], event)

    def charge(self, event: Event) -> None:
        """Charge an event, or refuse it and change nothing; here and, if others are
        open, there.
        """
        charge_all([*self._others(), self], event)

    def _others(self) -> list[Budget]:
        own = self._place
        return [b for b in open_budgets() if b is not self and b._place != own]

    def receipt(self) -> str:
        """Return what a certificate says of the account."""
        return receipt_of([self])

    # Open to fits elsewhere ---------------------------------------------------------

    def __enter__(self) -> Budget:
        with self._guard:
            if self._place is None:
                self._open()
            self._times_open += 1
        return self

    def __exit__(self, *_: object) -> None:
        if not self._guard.is_own:
            return  # of a process that was forked inside
        with self._guard:
            self._times_open = max(0, self._times_open - 1)
            if not self._times_open and self._place is not None:
                self._close(self._place)

    def _open(self) -> None:
        """Write the charges to a folder that says whose process this is."""
        if fcntl is None:
            raise LedgerError(
                "An open budget needs the file locks of Linux or macOS, which this "
                "system lacks."
            )
        limits = {"epsilon": self.epsilon, "delta": self.delta}
        lines = json.dumps(limits).encode() + b"\n"
        lines += b"".join(map(_line, self._known.filter.charged))
        name = f"{os.getpid()}-{_namespace()}-{secrets.token_hex(8)}"
        new, place = _folder() / f"new-{name}", _folder() / name
        lock = -1
        try:
            place.parent.mkdir(mode=0o700, exist_ok=True)
            if not _is_private(place.parent):
                raise PermissionError(0, "others may write to it")
            new.mkdir(mode=0o700)
            lock = os.open(new / _OPEN, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            (new / _CHARGES).write_bytes(lines)
            new.rename(place)  # open from here on
        except OSError as error:
            if lock >= 0:
                os.close(lock)
            shutil.rmtree(new, ignore_errors=True)
            raise LedgerError(
                f"{place.parent} cannot be used ({error.strerror}), so fits in other "
                "processes would not be charged. Make it a folder of yours alone."
            ) from None
        self._place, self._lock = place, lock
        self._known = replace(self._known, read=len(lines))
        _opened_here.add(str(place))
        _entered.append(self)

    def _close(self, place: Path) -> None:
        """Take what others charged, and let nobody charge from now on."""
        lock = self._lock
        try:
            with self._unguarded_charges():
                (place / _CHARGES).unlink()  # who waits for it finds it gone
        finally:
            if self in _entered:
                _entered.remove(self)
            self._place, self._lock = None, -1
            # A process that was forked from this one holds the same lock.
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)
            shutil.rmtree(place, ignore_errors=True)

    @classmethod
    def _joined(cls, place: Path) -> Budget:
        """Return a budget that another process opened."""
        with open(place / _CHARGES, "rb") as file:
            head = file.readline()
        found = cls(**json.loads(head))
        found._place, found._known = place, replace(found._known, read=len(head))
        return found

    @contextmanager
    def _charges(self) -> Iterator[int | None]:
        """Hold the charges when they were read, in their file if there is one."""
        with self._guard, self._unguarded_charges() as file:
            yield file

    @contextmanager
    def _unguarded_charges(self) -> Iterator[int | None]:
        if self._place is None:
            yield None
            return
        with suppress_closed(), ExitStack() as stack:
            file = os.open(self._place / _CHARGES, os.O_RDWR)
            stack.callback(os.close, file)
            stack.enter_context(locked(file))
            if not os.fstat(file).st_nlink:
                raise FileNotFoundError
            self._take_new(file)
            yield file

    def _take_new(self, file: int) -> None:
        """Read what others charged; a line without an end was cut off by a kill, before
        anything was released.
        """
        known = self._known
        size = os.fstat(file).st_size
        if size < known.read:
            raise LedgerError(f"{self._place} was changed. Nothing was released.")
        data = os.pread(file, size - known.read, known.read)
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.ftruncate(file, known.read + len(whole))
        new = [_charge_of(line) for line in whole.splitlines()]
        self._known = _Known(known.filter.with_(new), known.read + len(whole))

    def _write(self, charge: Charge, file: int | None) -> None:
        """Add a charge; one that cannot be written whole is none."""
        known, read = self._known, self._known.read
        if file is not None:
            line = _line(charge)
            try:
                written = os.pwrite(file, line, read)
            except OSError:
                written = 0
            if written != len(line):
                os.ftruncate(file, read)
                raise LedgerError(
                    f"{self._place} cannot be written: is the disk full? Nothing was "
                    "released."
                )
            read += len(line)
        self._known = _Known(known.filter.with_([charge]), read)


@contextmanager
def suppress_closed() -> Iterator[None]:
    """Say that a budget was closed, where its file is gone."""
    try:
        yield
    except FileNotFoundError:
        raise LedgerError(
            "The budget that this fit is charged to was closed in the meantime. Wait "
            "for all fits before the end of its block. Nothing was released."
        ) from None


def _line(charge: Charge) -> bytes:
    """Return a charge as a line of a file, which is read as the same."""
    found = {"event": charge.event.to_json(), "price": charge.price}
    line = json.dumps(found | {"request": charge.request}).encode() + b"\n"
    if _charge_of(line) != charge:
        raise LedgerError("This release cannot be written down. Nothing was released.")
    return line


def _charge_of(line: bytes) -> Charge:
    found = json.loads(line)
    loss, leak = found["price"]
    return Charge(from_json(found["event"]), (loss, leak), found["request"])


def check_all(budgets: Sequence[Budget], event: Event, *, request: str = "") -> None:
    """Refuse an event that does not fit into one of several budgets."""
    with _held(budgets) as held:
        for budget, _ in held:
            budget._known.filter.price(event, request)


def charge_all(budgets: Sequence[Budget], event: Event, *, request: str = "") -> None:
    """Charge all of several budgets, or refuse and charge none.

    What has a ``request`` is charged once: the same one again gets the same answer.
    """
    with _held(budgets) as held:
        prices = [budget._known.filter.price(event, request) for budget, _ in held]
        for (budget, file), price in zip(held, prices, strict=True):
            if price is not None:
                budget._write(Charge(event, price, request), file)


@contextmanager
def _held(budgets: Sequence[Budget]) -> Iterator[list[tuple[Budget, int | None]]]:
    """Hold the charges of budgets; all processes take them in the same order."""
    ordered = sorted(budgets, key=lambda budget: str(budget._place or ""))
    with ExitStack() as stack:
        yield [(b, stack.enter_context(b._charges())) for b in ordered]


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
_opened_here: set[str] = set()  # all that it ever opened
_inherited: list[Path] = []  # open when this process was forked
_payers: ContextVar[list[Budget] | None] = ContextVar("_payers", default=None)
_free: ContextVar[bool] = ContextVar("_free", default=False)


def _after_fork() -> None:
    _inherited.extend(budget._place for budget in _entered if budget._place)
    _entered.clear()
    _opened_here.clear()


getattr(os, "register_at_fork", lambda **_: None)(after_in_child=_after_fork)


@contextmanager
def charged_to_open_budgets(carried: Sequence[str] = ()) -> Iterator[None]:
    """Charge what is released inside to the budgets that are open now.

    ``carried`` are those that were sent along with a classifier.
    """
    token = _payers.set([] if _free.get() else open_budgets(carried))
    try:
        yield
    finally:
        _payers.reset(token)


_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


def releases(function: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
    """Charge what a function releases to the budgets that are open when it starts."""

    @wraps(function)
    def call(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        with charged_to_open_budgets():
            return function(*args, **kwargs)

    return call


@contextmanager
def nobody_pays() -> Iterator[None]:
    """Fit without charging an open budget: for fits of which nothing leaves."""
    token = _free.set(True)
    try:
        yield
    finally:
        _free.reset(token)


def payers() -> list[Budget]:
    """Return the budgets that a release is charged to: those that were open when its
    fit started.
    """
    if _free.get():
        return []
    found = _payers.get()
    return open_budgets() if found is None else found


def open_budgets(carried: Sequence[str] = ()) -> list[Budget]:
    """Return all budgets that are open, the last one opened last.

    They are those of this process, whatever thread opened them, those of the processes
    that it comes from, and those that were ``carried`` along with a classifier.
    """
    own = {budget._place for budget in _entered}
    sent = [_place_here(entry) for entry in carried]
    if any(place is None or not _is_open(place) for place in sent):
        raise LedgerError(
            "This classifier comes from a Budget that is closed, or on another "
            "machine, so its fit cannot be charged there. Make a new one: "
            "sklearn.base.clone(model). Nothing was released."
        )
    wanted = dict.fromkeys([*sent, *filter(_is_open, _inherited), *_of_ancestors()])
    found = []
    for place in wanted:
        if place is not None and place not in own:
            with suppress(FileNotFoundError):  # closed just now
                found.append(Budget._joined(place))
    return found + _entered


class CarriesBudgets:
    """A mixin for a classifier: a pickle of it names the budgets that are open, for a
    process that would not find them itself. So does a clone, while they are.
    """

    carried_budgets: Sequence[str] = ()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(cast(Any, super()).__getstate__())
        state.pop("carried_budgets", None)
        open_here = [f"{platform.node()}:{b._place}" for b in open_budgets()]
        names = list(dict.fromkeys([*self.carried_budgets, *open_here]))
        return state | ({"carried_budgets": names} if names else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        names = state.pop("carried_budgets", ())
        cast(Any, super()).__setstate__(state)
        self._carry(
            name for name in names if str(_place_here(name)) not in _opened_here
        )

    def __sklearn_clone__(self) -> Any:
        found = cast(Any, super()).__sklearn_clone__()
        places = {name: _place_here(name) for name in self.carried_budgets}
        found._carry(n for n, place in places.items() if not place or _is_open(place))
        return found

    def _carry(self, names: Iterable[str]) -> None:
        if kept := list(names):
            self.carried_budgets = kept


def _place_here(entry: str) -> Path | None:
    """Return the place of a budget that was sent here, None if it is elsewhere."""
    machine, _, place = entry.rpartition(":")
    return Path(place) if machine == platform.node() else None


def _folder() -> Path:
    """Return where this user's open budgets are: whatever the environment says, since
    that of an older process may say something else.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    return Path("/tmp") / f"mapl-budgets-{user}"  # noqa: S108 - checked to be our own


def _is_private(folder: Path) -> bool:
    """Whether a folder belongs to this user, who alone may write to it."""
    found = folder.lstat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o22


def _namespace() -> str:
    """Return what numbers of processes are within: a container has its own."""
    with suppress(OSError):
        return re.sub("[^0-9]", "", os.readlink(_PROC / "self" / "ns" / "pid")) or "0"
    return "0"


def _of_ancestors() -> list[Path]:
    """Return the open budgets of the processes that this one comes from."""
    with _looked_up():
        try:
            if _folder().lstat().st_uid != os.getuid():
                return []  # nobody can have opened one there
            places = sorted(_folder().iterdir())
        except FileNotFoundError:
            return []
        named = [(p, m) for p in places if (m := _NAME.fullmatch(p.name))]
        here = _namespace()
        above = _ancestors() if named else set()
        found = []
        for place, name in named:
            if not _is_open(place):  # left by a process that was killed
                shutil.rmtree(place, ignore_errors=True)
            elif name[2] == here and int(name[1]) in above:
                found.append(place)
        return found


@contextmanager
def _looked_up() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LedgerError(
            f"Whether a budget is open cannot be found out ({error}). Nothing was "
            "released."
        ) from None


def _is_open(place: Path) -> bool:
    """Whether somebody holds the lock of an open budget."""
    with _looked_up():
        try:
            file = os.open(place / _OPEN, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
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
    """Return the parent of a process, 0 for none that is there."""
    if (_PROC / "self").exists():
        with suppress(FileNotFoundError, ProcessLookupError):
            shown = (_PROC / str(process) / "stat").read_text()
            return int(shown.rpartition(")")[2].split()[1])
        return 0
    command = ["ps", "-o", "ppid=", "-p", str(process)]
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    return int(done.stdout.strip() or 0)
