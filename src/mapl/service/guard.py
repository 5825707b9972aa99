"""What surrounds every request: how large and how slow it may be, the headers of its
answer, a line in the log. Nothing private leaves in an error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson
from starlette.datastructures import Headers

from mapl.service.logs import log, where
from mapl.service.metrics import Metrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_FORM_BYTES = 10_000
_CSP = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]


class _RefusedError(Exception):
    """A body that is too large, or does not arrive."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Guard:
    """Wraps the application.

    ``most_bytes`` may a body have, and ``seconds`` may it take to arrive. Of somebody
    who may not send one (``may_send``), it is read as far as a form to sign in goes.
    """

    def __init__(
        self,
        app: Any,
        *,
        most_bytes: int,
        seconds: float,
        metrics: Metrics,
        may_send: Callable[[Headers], bool],
    ) -> None:
        self._app, self._most_bytes, self._seconds = app, most_bytes, seconds
        self._may_send = may_send
        self._metrics = metrics

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, answer = time.perf_counter(), _Answer(send)
        scope["mapl"] = {}
        try:
            body = await self._body(scope, receive)
            await self._app(scope, _replayed(body, receive), answer.send)
        except _RefusedError as refused:
            await answer.refuse(refused.status, str(refused))
        except Exception as error:
            log("failed", level=logging.ERROR, error=where(error))
            await answer.refuse(500, "Something went wrong inside. Nothing was lost.")
        seconds = time.perf_counter() - start
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.request(route, answer.status, seconds)
        log(
            "request",
            method=scope["method"] if scope["method"].isalpha() else "?",
            route=route,
            status=answer.status,
            ms=round(1000 * seconds, 1),
            **scope["mapl"],
        )

    async def _body(self, scope: Message, receive: Receive) -> bytes:
        """Read the whole body, unless it is too large or too slow."""
        most, too_large = self._limit(Headers(scope=scope))
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > most:
            raise too_large
        parts, size, more = [], 0, True
        try:
            async with asyncio.timeout(self._seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _RefusedError(400, "The client has gone.")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise too_large
                    more = message.get("more_body", False)
        except TimeoutError:
            raise _RefusedError(408, "The body did not arrive in time.") from None
        return b"".join(parts)

    def _limit(self, headers: Headers) -> tuple[int, _RefusedError]:
        """Return how large a body may be, and what is said of a larger one."""
        if not self._may_send(headers):
            return _FORM_BYTES, _RefusedError(401, "This needs a valid token.")
        most = self._most_bytes
        return most, _RefusedError(
            413, f"A body may have {most} bytes. Send fewer records."
        )


class _Answer:
    """Sends an answer with our headers, and knows its status."""

    def __init__(self, send: Send) -> None:
        self._send, self.status, self._started = send, 500, False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self._started = message["status"], True
            message = {**message, "headers": [*message["headers"], *_HEADERS]}
        await self._send(message)

    async def refuse(self, status: int, reason: str) -> None:
        """Send an error, unless an answer has begun."""
        if self._started:
            return
        body = orjson.dumps({"error": reason})
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        start = {"type": "http.response.start", "status": status, "headers": headers}
        await self.send(start)
        await self._send({"type": "http.response.body", "body": body})


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a receive that hands out a body that was read already."""
    waiting = [body]

    async def again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again
