"""What lies beside the database: the state folder, file locks, the high-water mark."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

from mapl.errors import LedgerCorruptedError, LedgerError

fcntl: Any
try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None

_NETWORK = {"9p", "afs", "beegfs", "ceph", "cifs", "lustre", "ncpfs", "nfs", "nfs4"}
_NETWORK |= {"smb3", "smbfs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs"}
_MOUNTS = Path("/proc/mounts")
GENESIS = bytes(32)
_SHORTEST_KEY = 32  # characters of MAPL_KEY


def state_folder() -> Path:
    """Return where keys and marks are: $MAPL_STATE, else the user's state folder."""
    if given := os.environ.get("MAPL_STATE"):
        return Path(given)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "mapl"


def given_key(ledger_id: str) -> bytes:
    """Return the key of a ledger that follows from ``MAPL_KEY``.

    Raises ValueError if there is none, or it is too short to be a secret.
    """
    given = os.environ.get("MAPL_KEY", "")
    if len(given) < _SHORTEST_KEY:
        raise ValueError
    return blake2b(
        ledger_id.encode(), digest_size=32, key=sha256(given.encode()).digest()
    ).digest()


def refuse_network_folder(folder: Path) -> None:
    """SQLite's locks do not hold on network file systems."""
    if not folder.is_dir():
        raise LedgerError(f"The folder {folder} does not exist.")
    if not _MOUNTS.exists():
        return
    where, kind = "", ""
    for line in _MOUNTS.read_text().splitlines():
        point, type_ = line.split()[1:3]
        inside = folder.resolve().is_relative_to(point.replace("\\040", " "))
        if inside and len(point) >= len(where):
            where, kind = point, type_
    if kind in _NETWORK:
        raise LedgerError(
            f"{folder} is on a network file system ({kind}), where SQLite's locks do "
            "not hold. Use a local disk, or PostgreSQL."
        )


def write_for_owner(path: Path, data: bytes) -> None:
    """Write a file for its owner alone: all of it, or the old one stays."""
    part = path.with_name(f".{path.name}.part")
    descriptor = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


@contextmanager
def locked(descriptor: int, *, seconds: float | None = None) -> Iterator[None]:
    """Hold an exclusive lock on an open file; wait for so long, or as it takes.

    Raises TimeoutError, an OSError, when the time is over.
    """
    if fcntl is None:
        raise LedgerError(
            "A ledger needs the file locks of Linux or macOS, which this system lacks. "
            "Nothing was released."
        )
    if seconds is None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    else:
        _lock_within(descriptor, seconds)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _lock_within(descriptor: int, seconds: float) -> None:
    end, pause = time.monotonic() + seconds, 0.0005
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise TimeoutError from None
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def _write_through(descriptor: int, data: bytes, at: int) -> None:
    """Write to the disk, not only to the system's cache."""
    if hasattr(os, "RWF_DSYNC"):
        os.pwritev(descriptor, [data], at, os.RWF_DSYNC)
    else:  # macOS, where fsync leaves data in the drive's cache
        os.pwrite(descriptor, data, at)
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)


class HighWaterMark:
    """How far this machine has seen the ledger: a file of two slots.

    The lower one is written next, so that a torn write leaves the last mark intact. The
    mark never goes back: a restored old copy of the database lacks the row at the mark.
    """

    _SLOT = 64  # number, mac, and a checksum of both

    def __init__(self, path: Path) -> None:
        self.path, self.seq, self.mac = path, 0, GENESIS
        self._next = 0  # the slot that is written next
        try:
            self._file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise LedgerError(
                f"The mark {path} cannot be opened ({error.strerror}). Nothing was "
                "released."
            ) from error

    def read(self) -> None:
        """Read the highest mark that is intact; it is an error if none is."""
        both = os.pread(self._file, 2 * self._SLOT, 0)
        slots = [both[: self._SLOT], both[self._SLOT :]]
        intact = {
            i: int.from_bytes(s[:8])
            for i, s in enumerate(slots)
            if len(s) == self._SLOT and s[40:] == _checksum(s[:40])
        }
        if any(slots) and not intact:
            raise LedgerCorruptedError(
                f"The mark {self.path} is damaged: an old copy of the ledger would no "
                "longer be noticed. Check the ledger, then remove the mark."
            )
        if intact:
            highest = max(intact, key=lambda i: intact[i])
            self._next = 1 - highest
            if intact[highest] > self.seq:
                self.seq, self.mac = intact[highest], slots[highest][8:40]

    def raise_to(self, seq: int, mac: bytes) -> None:
        """Write a higher mark to the disk, or read the one that is there."""
        try:
            with locked(self._file):
                self.read()
                if seq > self.seq:
                    body = seq.to_bytes(8) + mac
                    slot = body + _checksum(body)
                    _write_through(self._file, slot, self._next * self._SLOT)
                    self.seq, self.mac = seq, mac
        except OSError as error:
            raise LedgerError(
                f"The mark {self.path} cannot be written ({error.strerror}). What was "
                "charged is committed; nothing was released. Fix the cause and rerun; "
                "committed charges are reused."
            ) from error

    def check(self, row: Mapping[str, Any]) -> None:
        """Refuse a row that differs from the one seen before."""
        if row["seq"] == self.seq and row["mac"] != self.mac:
            raise LedgerCorruptedError(
                f"Row {self.seq} is not the one that this machine has seen: two "
                "copies of one ledger were written to. Keep the one that spent more."
            )

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _checksum(body: bytes) -> bytes:
    return sha256(body).digest()[:24]
