"""The page at /: budgets, panels, a form to ask by hand, and who asked what.

It has no script at all: forms, links and pictures drawn by the server.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from mapl import __version__
from mapl.errors import MaplError, ParameterError
from mapl.service.batching import in_asking_thread
from mapl.service.callers import (
    COOKIE,
    Caller,
    UnknownCallerError,
    refuse_other_sites,
)
from mapl.service.chart import answers_over_time
from mapl.service.core import Service, TheCaller, TheService
from mapl.service.served import ServedModel, ServedPanel
from mapl.service.tensors import checked_request

_SHOWN = 50  # lines of the audit log
_DRAWN = 500  # requests in a picture
_SESSION_SECONDS = 12 * 3600
routes = APIRouter(include_in_schema=False)


@routes.get("/")
async def home(request: Request, service: TheService) -> Response:
    """The page, or a form to sign in."""
    try:
        caller = service.door.caller(request)
    except UnknownCallerError:
        return _html("sign_in.html", 401, error="")
    return await _home(service, caller)


@routes.post("/sign-in")
async def sign_in(request: Request, service: TheService) -> Response:
    """Take a token, and keep it in a cookie that no script and no other site sees."""
    refuse_other_sites(request)
    secret = (await _form(request)).get("token", "").strip()
    try:
        service.door.known(secret)
    except UnknownCallerError:
        return _html("sign_in.html", 401, error="This token is not valid.")
    found = RedirectResponse("/", 303)
    found.set_cookie(
        COOKIE,
        secret,
        max_age=_SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return found


@routes.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """Forget the token."""
    refuse_other_sites(request)
    found = RedirectResponse("/", 303)
    found.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return found


@routes.post("/ask/{name}")
async def ask(
    name: str, request: Request, service: TheService, caller: TheCaller
) -> Response:
    """Ask about one record that was typed in."""
    form = await _form(request)
    served = service.find(name, caller)
    inputs = [
        {
            "name": column,
            "shape": [1],
            "datatype": "BYTES",
            "data": [form.get(f"c{i}", "").strip() or None],
        }
        for i, column in enumerate(served.columns)
    ]
    result: dict[str, Any] = {"name": name, "label": "", "error": "", "form": form}
    status = 200
    try:
        asked = checked_request({"id": form.get("id") or None, "inputs": inputs})
        found = await service.infer(request, name, asked, caller)
        outputs = {one["name"]: one["data"] for one in found["outputs"]}
        result |= {"label": outputs["label"][0], "outputs": outputs}
    except ParameterError as error:
        status, result["error"] = 400, str(error)
    return await _home(service, caller, result=result, status=status)


@routes.get("/{name}.{ending}")
async def file(name: str, ending: str) -> Response:
    """The files that the page needs."""
    kind = {"style.css": "text/css", "icon.svg": "image/svg+xml"}.get(
        f"{name}.{ending}"
    )
    if kind is None:
        return as_page(404, "There is no such page.")
    return Response(_file(f"{name}.{ending}"), media_type=kind)


def as_page(status: int, reason: str) -> Response:
    """Return an error for people."""
    return _html("error.html", status, reason=reason)


async def _home(
    service: Service,
    caller: Caller,
    *,
    result: dict[str, Any] | None = None,
    status: int = 200,
) -> Response:
    visible = service.visible_to(caller)
    panels = [one for one in visible if isinstance(one, ServedPanel)]
    models = [one for one in visible if isinstance(one, ServedModel)]
    shown = await in_asking_thread(lambda: _facts(panels))
    return _html(
        "home.html",
        status,
        caller=caller,
        models=[_model_facts(one) for one in models],
        result=result,
        new_id=lambda: f"page-{secrets.token_hex(8)}",
        **shown,
    )


def _facts(panels: list[ServedPanel]) -> dict[str, Any]:
    """Return what the page shows of panels and their data sets. Public."""
    datasets: dict[str, Any] = {}
    shown, answers, charges = [], [], []
    for one in panels:
        name = str(one.dataset)
        if name not in datasets:
            datasets[name] = one.panel.balance()
            new = one.panel.ledger.newest_answers(name, n=_DRAWN)
            answers += [{"dataset": name, **row} for row in new]
            charges += one.panel.ledger.charges(name)
        own = [row for row in answers if row["panel"] == one.panel.public["id"]]
        shown.append(_panel_facts(one, own))
    names = {one.panel.public["id"]: one.name for one in panels}
    log = [_audit_line(row, names) for row in answers] + [
        _audit_line(row, names) for row in charges
    ]
    log.sort(key=lambda line: str(line["at"]), reverse=True)
    return {"datasets": datasets.values(), "panels": shown, "audit": log[:_SHOWN]}


def _panel_facts(one: ServedPanel, answers: list[dict[str, Any]]) -> dict[str, Any]:
    try:
        facts = one.panel.show()
    except MaplError:
        facts = {"open": False, "dataset": one.dataset, "teachers": 0}
    return {
        "name": one.name,
        "columns": one.columns,
        "facts": facts,
        "chart": answers_over_time(answers[::-1]),
    }


def _model_facts(one: ServedModel) -> dict[str, Any]:
    return {"name": one.name, "columns": one.columns, "facts": one.properties()}


def _audit_line(row: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return a line of the audit log: an answer, or what was paid for."""
    if "asked_at" not in row:
        return {
            "at": row["at"],
            "by": row["who"],
            "dataset": row["dataset"],
            "what": row["what"],
            "queries": "",
            "paid": f"{row['loss']:.4g}",
        }
    panel = names.get(row["panel"], "another panel")
    return {
        "at": row["asked_at"],
        "by": row["by"],
        "dataset": row["dataset"],
        "what": f"asked {panel}, {row['abstained']} withheld",
        "queries": row["queries"],
        "paid": "0",
    }


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form."""
    body = (await request.body()).decode("utf-8", "replace")
    return {name: values[-1] for name, values in parse_qs(body).items()}


@lru_cache(maxsize=1)
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("mapl.service", "files"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _html(template: str, status: int, **values: Any) -> HTMLResponse:
    page = _templates().get_template(template).render(version=__version__, **values)
    return HTMLResponse(page, status)


@lru_cache(maxsize=8)
def _file(name: str) -> bytes:
    return (files("mapl.service") / "files" / name).read_bytes()
