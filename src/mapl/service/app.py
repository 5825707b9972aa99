"""The application: routes, errors, and what guards them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from mapl import __version__
from mapl.errors import (
    BudgetExceededError,
    LedgerError,
    MaplError,
    NotOpenError,
    ParameterError,
    RequestConflictError,
)
from mapl.service import page, protocol
from mapl.service.batching import BusyError
from mapl.service.callers import (
    Door,
    ForbiddenError,
    TooOftenError,
    UnknownCallerError,
)
from mapl.service.core import Limits, Service, UnknownModelError
from mapl.service.guard import Guard
from mapl.service.logs import log
from mapl.service.served import Served

_STATUS: dict[type[Exception], int] = {
    ParameterError: 400,
    UnknownCallerError: 401,
    BudgetExceededError: 403,  # clients would retry 429
    NotOpenError: 403,
    ForbiddenError: 403,
    UnknownModelError: 404,
    RequestConflictError: 409,
    TooOftenError: 429,
    BusyError: 503,
    LedgerError: 503,
}


def create_app(served: Mapping[str, Served], *, door: Door, limits: Limits) -> Guard:
    """Return the application that serves some panels and models."""
    app = FastAPI(
        title="mapl",
        version=__version__,
        summary="Labels for records, differentially private.",
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # to the host that a request names, before its token
    )
    app.state.service = service = Service(served, door=door, limits=limits)
    for kind in (MaplError, HTTPException, Exception):
        app.add_exception_handler(kind, _as_error)
    app.include_router(protocol.routes)
    app.include_router(page.routes)
    protocol.describe(app.openapi())  # FastAPI keeps the document that it made
    return Guard(
        app,
        most_bytes=limits.most_bytes,
        seconds=limits.body_seconds,
        metrics=service.metrics,
        may_send=door.may_send,
    )


async def _as_error(request: Request, error: Exception) -> Response:
    """Return an error as the protocol has it, with nothing private in it."""
    if request.headers.get("accept", "").startswith("text/html"):
        return page.as_page(*_said(error))
    status, reason = _said(error)
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}
    own = getattr(error, "headers", None) or headers.get(status)
    return JSONResponse({"error": reason}, status, own)


def _said(error: Exception) -> tuple[int, str]:
    """Return the status of an error, and what is said of it."""
    if isinstance(error, HTTPException):
        return error.status_code, str(error.detail)
    if isinstance(error, LedgerError):
        log("ledger", level=logging.ERROR, error=str(error))
        return 503, "The ledger cannot be used at the moment. Nothing was released."
    found = [code for kind, code in _STATUS.items() if isinstance(error, kind)]
    return (found[0], str(error)) if found else (500, "Something went wrong inside.")
