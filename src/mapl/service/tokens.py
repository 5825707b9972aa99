"""Who may ask: tokens in the state folder, of which only digests are kept.

A token is 256 random bits, so a plain digest of it cannot be searched for.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from mapl.errors import LedgerError, ParameterError, one_of
from mapl.ledger.files import locked, state_folder, write_for_owner

SCOPES = ("analyst", "operator")
_FILE = "tokens.json"
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,60}")


@dataclass(frozen=True)
class Token:
    """What is kept of a token. Times are in UTC."""

    name: str
    digest: str
    scope: str
    datasets: tuple[str, ...]
    created: str
    expires: str | None = None
    revoked: bool = False

    @property
    def state(self) -> str:
        """Whether it is "valid", "expired" or "revoked"."""
        if self.revoked:
            return "revoked"
        over = self.expires is not None and _now() >= datetime.fromisoformat(
            self.expires
        )
        return "expired" if over else "valid"


class Tokens:
    """The tokens of this machine: those that were made, and what became of them."""

    def __init__(self) -> None:
        self._path = state_folder() / _FILE
        self._read: tuple[tuple[int, int], list[Token]] | None = None

    def create(
        self,
        *,
        scope: str,
        datasets: list[str],
        name: str | None = None,
        expires: str | None = None,
    ) -> str:
        """Make a token and return it: it is shown this once.

        ``expires`` is a number of hours or days such as "12h" or "30d", or a date.
        """
        one_of(*SCOPES, scope=scope)
        name = secrets.token_hex(4) if name is None else name
        if not _NAME.fullmatch(name):
            raise ParameterError(
                f"name must be 1 to 60 letters, digits and . _ @ -, got {name!r:.80}."
            )
        if not datasets or not all(one.strip() for one in datasets):
            raise ParameterError("dataset must be a name.")
        end = None if expires is None else _end(expires)
        secret = f"mapl_{secrets.token_urlsafe(32)}"
        made = Token(
            name, _digest(secret), scope, tuple(datasets), _now().isoformat(), end
        )
        with self._changing() as tokens:
            if any(one.name == name for one in tokens):
                raise ParameterError(
                    f"There is a token {name!r} already. Take another name."
                )
            tokens.append(made)
        return secret

    def revoke(self, name: str) -> None:
        """Let a token be of no use from now on."""
        with self._changing() as tokens:
            found = [i for i, one in enumerate(tokens) if one.name == name]
            if not found:
                raise ParameterError(
                    f"There is no token {name!r:.80}. See: mapl token list"
                )
            tokens[found[0]] = replace(tokens[found[0]], revoked=True)

    def all(self) -> list[Token]:
        """Return all tokens that were ever made."""
        try:
            file = self._path.stat()
            seen = file.st_mtime_ns, file.st_ino
            if self._read is None or self._read[0] != seen:
                listed = json.loads(self._path.read_text())
                tokens = [
                    Token(**{**one, "datasets": tuple(one["datasets"])})
                    for one in listed
                ]
                self._read = seen, tokens
            return list(self._read[1])
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError):
            raise LedgerError(
                f"{self._path} cannot be read. Restore it, or remove it and make new "
                "tokens."
            ) from None

    def exist(self) -> bool:
        """Whether any was ever made here."""
        return self._path.exists()

    def find(self, secret: str) -> Token | None:
        """Return the valid token that this is, or None.

        Every token is compared, each in constant time.
        """
        given = _digest(secret)
        found = None
        for token in self.all():
            if hmac.compare_digest(token.digest, given):
                found = token
        return found if found is not None and found.state == "valid" else None

    @contextmanager
    def _changing(self) -> Iterator[list[Token]]:
        """Yield the tokens to change; all of it is written, or nothing."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(self._path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            with locked(lock):
                tokens = self.all()
                yield tokens
                listed = json.dumps([asdict(one) for one in tokens])
                write_for_owner(self._path, listed.encode())
        finally:
            os.close(lock)

    def __repr__(self) -> str:
        return f"Tokens({str(self._path)!r})"


def _digest(secret: str) -> str:
    return sha256(secret.encode("utf-8", "replace")).hexdigest()


def _now() -> datetime:
    return datetime.fromtimestamp(int(time.time()), UTC)


def _end(expires: str) -> str:
    """Return when a token ends."""
    if found := re.fullmatch(r"([1-9][0-9]{0,4})([hd])", expires.strip()):
        hours = int(found[1]) * (24 if found[2] == "d" else 1)
        return (_now() + timedelta(hours=hours)).isoformat()
    try:
        end = datetime.fromisoformat(expires.strip())
    except ValueError:
        raise ParameterError(
            f"expires must be hours or days such as 12h or 30d, or a date such as "
            f"2030-12-31, got {expires!r:.40}."
        ) from None
    end = end if end.tzinfo else end.replace(tzinfo=UTC)
    if end <= _now():
        raise ParameterError("expires must lie in the future.")
    return end.astimezone(UTC).isoformat()
