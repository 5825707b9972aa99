"""Listens: on this machine alone, or with tokens; in one process or several."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from mapl.errors import ParameterError, integer
from mapl.service.app import create_app
from mapl.service.callers import Door, is_loopback
from mapl.service.core import Limits
from mapl.service.guard import Guard
from mapl.service.logs import configure, log
from mapl.service.served import serve_all
from mapl.service.tokens import Tokens

_SETTINGS = "MAPL_SERVE"  # how workers learn what to serve
_IDLE_SECONDS = 20.0  # a connection may be silent before its request is whole


@dataclass(frozen=True)
class Settings:
    """What to serve, and where."""

    panels: Sequence[str] = ()
    models: Sequence[str] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    limits: Limits = field(default_factory=Limits)

    def as_json(self) -> str:
        """Return it as a text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Return what `as_json` wrote."""
        given = json.loads(text)
        return cls(**{**given, "limits": Limits(**given["limits"])})


def app_of(settings: Settings) -> Guard:
    """Return the application, with everything loaded."""
    served = serve_all(
        [Path(folder) for folder in settings.panels],
        [Path(folder) for folder in settings.models],
    )
    door = Door(guarded=not is_loopback(settings.host), rate=settings.limits.rate)
    return create_app(served, door=door, limits=settings.limits)


def app_of_worker() -> Guard:
    """Return the application in a worker, which has its settings from its parent."""
    configure()
    return app_of(Settings.from_json(os.environ[_SETTINGS]))


def serve(settings: Settings) -> None:
    """Serve until somebody stops it."""
    _check(settings)
    configure()
    alone = integer(workers=settings.workers, at_least=1) == 1
    # Loaded here first, whatever the number of workers: what is wrong is said at once.
    app = app_of(settings)
    listening = _listen(settings)
    options: dict[str, Any] = {
        "http": PatientProtocol,
        "ws": "none",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "ssl_certfile": settings.ssl_certfile,
        "ssl_keyfile": settings.ssl_keyfile,
        "timeout_graceful_shutdown": 10,
    }
    log("listening", url=_address(settings, listening), workers=settings.workers)
    if alone:
        uvicorn.Server(uvicorn.Config(app, **options)).run([listening])
        return
    os.environ[_SETTINGS] = settings.as_json()
    port = listening.getsockname()[1]
    listening.close()  # it is free; the workers' parent listens there
    uvicorn.run(
        "mapl.service.server:app_of_worker",
        factory=True,
        host=settings.host,
        port=port,
        workers=settings.workers,
        **options,
    )


def _check(settings: Settings) -> None:
    """Refuse to listen where strangers could ask."""
    if is_loopback(settings.host):
        return
    if not any(token.state == "valid" for token in Tokens().all()):
        raise ParameterError(
            f"host {settings.host!r} is open to other machines, so that callers need "
            "tokens, and there are none. Make one: mapl token create --scope analyst "
            "--dataset NAME"
        )
    if settings.ssl_certfile is None:
        log(
            "tokens travel in the clear: give --ssl-certfile, or put a proxy with TLS "
            "in front",
            level=logging.WARNING,
        )


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    if not 0 <= settings.port < 2**16:
        raise ParameterError(f"port must be 0 to 65535, got {settings.port}.")
    try:
        return socket.create_server(
            (settings.host, settings.port), family=family, backlog=1024
        )
    except OSError as error:
        raise ParameterError(
            f"{settings.host}:{settings.port} cannot be listened on: {error.strerror}."
        ) from None


def _address(settings: Settings, listening: socket.socket) -> str:
    scheme = "http" if settings.ssl_certfile is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{listening.getsockname()[1]}"


class PatientProtocol(H11Protocol):
    """HTTP that hangs up on who does not finish the head of a request, or read.

    uvicorn waits for it forever. Bodies have a limit of their own, in `Guard`.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        # asyncio does this only for sockets that say they are TCP; else each answer
        # waits 40 ms for the acknowledgement of its own head.
        transport.get_extra_info("socket").setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )
        self._wait()

    def _wait(self) -> None:
        self.loop.call_later(_IDLE_SECONDS, self._look, self.cycle)

    def _look(self, before: object) -> None:
        """Hang up if nothing is being answered, and no request came since."""
        if self.transport.is_closing():
            return
        answering = self.cycle is not None and not self.cycle.response_complete
        if self.cycle is before and self.transport.get_write_buffer_size():
            self.transport.abort()  # it does not read what it asked for
        elif answering or self.cycle is not before:
            self._wait()
        else:
            self.transport.close()
