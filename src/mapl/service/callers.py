"""Who calls, what they may do, and how often."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from ipaddress import ip_address

from fastapi import Request
from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from mapl.errors import MaplError, ParameterError
from mapl.service.tokens import Tokens

COOKIE = "mapl_token"
_LOCAL = re.compile(r"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?")


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
        refuse_other_sites(request)
        secret = _secret(request.headers)
        if secret is None and not self._needs_token():
            _refuse_other_hosts(request)
            caller = Caller("anonymous", "operator", None)
        else:
            caller = self.known(secret or "")
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

    def may_send(self, headers: Headers) -> bool:
        """Whether a large body may be read: not before its sender is known."""
        try:
            secret = _secret(headers) or ""
            return not self._needs_token() or self._tokens.find(secret) is not None
        except MaplError:
            return False

    def _needs_token(self) -> bool:
        # Once there were tokens, an empty or missing list does not open the door.
        self._guarded = self._guarded or self._tokens.exist()
        return self._guarded


def _secret(headers: Headers) -> str | None:
    """Return the token in the head of a request, None without any."""
    given = headers.get("authorization")
    if given is None:
        return cookie_parser(headers.get("cookie", "")).get(COOKIE)
    scheme, _, secret = given.partition(" ")
    if scheme.lower() != "bearer":
        raise UnknownCallerError("Send the token as: Authorization: Bearer TOKEN")
    return secret.strip()


def refuse_other_sites(request: Request) -> None:
    """Refuse what a page of another site makes a browser send."""
    headers = request.headers
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        own = site in ("none", "same-origin")
    else:  # an old browser, or none
        own = origin is None or origin.partition("://")[2] == headers.get("host")
    if request.method != "GET" and not own:
        raise ForbiddenError("Requests from pages of other sites are refused.")


def _refuse_other_hosts(request: Request) -> None:
    """Refuse a name that somebody has pointed at this machine, and proxies."""
    hosts = request.headers.getlist("host")
    local = len(hosts) == 1 and _LOCAL.fullmatch(hosts[0]) is not None
    passed_on = any(
        name.startswith(("forwarded", "x-forwarded")) for name in request.headers
    )
    if not local or passed_on:
        raise ForbiddenError(
            "Without tokens only localhost is answered, and no proxy. Make a token: "
            "mapl token create"
        )


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
