"""Who calls, what they may do, and how often."""

from __future__ import annotations

import time
from dataclasses import dataclass
from ipaddress import ip_address

from fastapi import Request

from mapl.errors import MaplError, ParameterError
from mapl.service.tokens import Tokens

COOKIE = "mapl_token"


class UnknownCallerError(MaplError):
    """No token, or one that is not valid."""


class ForbiddenError(MaplError):
    """A token that does not allow this."""


class TooOftenError(MaplError):
    """More requests a second than are allowed."""


@dataclass(frozen=True)
class Caller:
    """Somebody who may ask about some data sets; None for all of them."""

    name: str
    scope: str
    datasets: tuple[str, ...] | None

    def may_see(self, dataset: str | None) -> bool:
        """Whether a data set is theirs; what has none is public."""
        return dataset is None or self.datasets is None or dataset in self.datasets

    @property
    def is_operator(self) -> bool:
        """Whether they see logs and metrics."""
        return self.scope == "operator"


class Door:
    """Lets callers in by their tokens.

    Without any token it is open, which is for this machine alone: ``guarded`` keeps it
    shut even then. Once a token was made, it takes one.
    """

    def __init__(self, *, guarded: bool, rate: float) -> None:
        self._tokens, self._guarded = Tokens(), guarded
        self._limit = RateLimit(rate)

    def caller(self, request: Request) -> Caller:
        """Return who sent a request, or refuse it."""
        _refuse_other_sites(request)
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        if secret and scheme.lower() != "bearer":
            raise UnknownCallerError("Send the token as: Authorization: Bearer TOKEN")
        secret = secret.strip() or request.cookies.get(COOKIE, "")
        if not secret and not self._needs_token():
            _refuse_other_hosts(request)
            caller = Caller("anonymous", "operator", None)
        else:
            caller = self.known(secret)
        self._limit.count(caller.name)
        return caller

    def known(self, secret: str) -> Caller:
        """Return whose token this is."""
        token = self._tokens.find(secret) if secret else None
        if token is None:
            raise UnknownCallerError(
                "This needs a valid token, as: Authorization: Bearer TOKEN. Make one: "
                "mapl token create"
            )
        return Caller(token.name, token.scope, token.datasets)

    def _needs_token(self) -> bool:
        return self._guarded or bool(self._tokens.all())


def _refuse_other_sites(request: Request) -> None:
    """Refuse what a page of another site makes a browser send."""
    site = request.headers.get("sec-fetch-site", "none")
    if request.method != "GET" and site not in ("none", "same-origin"):
        raise ForbiddenError("Requests from pages of other sites are refused.")


def _refuse_other_hosts(request: Request) -> None:
    """Refuse a name that somebody has pointed at this machine."""
    if not is_loopback(request.url.hostname or ""):
        raise ForbiddenError("Without tokens only localhost is answered.")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine itself, reached by nobody else."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class RateLimit:
    """So many requests a second for each caller, and as many at once."""

    def __init__(self, rate: float) -> None:
        if not rate > 0:
            raise ParameterError(f"rate must be a number > 0, got {rate!r}.")
        self._rate = rate
        self._left: dict[str, tuple[float, float]] = {}  # requests left, and when

    def count(self, name: str) -> None:
        """Take one of a caller's requests, or refuse."""
        now, most = time.monotonic(), max(1.0, self._rate)
        left, then = self._left.get(name, (most, now))
        left = min(most, left + (now - then) * self._rate)
        self._left[name] = max(0.0, left - 1), now
        if left < 1:
            raise TooOftenError(
                f"More than {self._rate:g} requests a second. Try again in a second."
            )
