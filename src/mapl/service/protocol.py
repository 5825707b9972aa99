"""The routes of the Open Inference Protocol, and figures for operators."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from mapl import __version__
from mapl.service.batching import in_asking_thread
from mapl.service.callers import ForbiddenError
from mapl.service.core import TheCaller, TheService
from mapl.service.metrics import TYPE
from mapl.service.served import ServedPanel, metadata
from mapl.service.tensors import (
    ErrorResponse,
    InferenceRequest,
    InferenceResponse,
    parse_request,
)

_ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorResponse} for code in (400, 401, 403, 404, 409, 413, 429, 503)
}
_NOT_READY: dict[int | str, dict[str, Any]] = {503: {"description": "Not ready."}}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/InferenceRequest"}
            }
        },
    }
}
routes = APIRouter()


@routes.get("/v2/health/live", tags=["health"])
async def live() -> dict[str, Any]:
    """Whether the server runs."""
    return {"live": True, "status": "alive"}


@routes.get("/v2/health/ready", tags=["health"], responses=_NOT_READY)
async def ready(service: TheService) -> Response:
    """Whether every panel and model answers."""
    found = [await one.is_ready() for one in service.served.values()]
    return JSONResponse({"ready": all(found)}, 200 if all(found) else 503)


@routes.get("/v2", tags=["health"])
async def server() -> dict[str, Any]:
    """What this server is."""
    return {"name": "mapl", "version": __version__, "extensions": []}


@routes.get("/v2/models/{name}", tags=["models"], responses=_ERRORS)
async def model(name: str, service: TheService, caller: TheCaller) -> dict[str, Any]:
    """Inputs, outputs and classes of a panel or model."""
    return metadata(service.find(name, caller))


@routes.get("/v2/models/{name}/ready", tags=["models"], responses=_ERRORS)
async def model_ready(name: str, service: TheService, caller: TheCaller) -> Response:
    """Whether a panel or model answers."""
    found = await service.find(name, caller).is_ready()
    return JSONResponse({"name": name, "ready": found}, 200 if found else 503)


@routes.post(
    "/v2/models/{name}/infer",
    tags=["models"],
    responses={200: {"model": InferenceResponse}, **_ERRORS},
    openapi_extra=_BODY,
)
async def infer(
    name: str, request: Request, service: TheService, caller: TheCaller
) -> Response:
    """Labels for records."""
    asked = parse_request(await request.body())
    found = await service.infer(request, name, asked, caller)
    return Response(orjson.dumps(found), media_type="application/json")


@routes.get("/metrics", tags=["operators"], responses=_ERRORS)
async def metrics(service: TheService, caller: TheCaller) -> Response:
    """Public figures for Prometheus; for operators."""
    if not caller.is_operator:
        raise ForbiddenError("This is for operators.")
    mine = service.visible_to(caller)
    panels = [one.panel for one in mine if isinstance(one, ServedPanel)]
    balances = await in_asking_thread(lambda: [panel.balance() for panel in panels])
    shown = service.metrics.show(balances, models=[one.name for one in mine])
    return Response(shown, media_type=TYPE)


def describe(document: dict[str, Any]) -> None:
    """Add the body of a request, which is read by hand, to an OpenAPI document."""
    template = "#/components/schemas/{model}"
    schema = InferenceRequest.model_json_schema(ref_template=template)
    parts = document["components"]["schemas"]
    parts |= schema.pop("$defs")
    parts["InferenceRequest"] = schema
