"""Requests of the Open Inference Protocol: tensors in, a table of records out.

Everything here is public: clients send records that they want a label for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mapl.errors import ParameterError
from mapl.records.columns import convert

Datatype = Literal[
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BYTES",
]
_LARGEST_ID = 200  # characters
_CELLS = 1 << 24  # of a tensor; more would not fit into the largest body


class InputTensor(BaseModel):
    """Some values: those of a column, or of all columns.

    ``data`` is flat or nested; null is a missing value.
    """

    model_config = ConfigDict(strict=True)
    name: str = Field(max_length=1000, examples=["age"])
    shape: list[int] = Field(min_length=1, max_length=2, examples=[[2]])
    datatype: Datatype
    data: list[Any] = Field(examples=[[31, 54]])


class RequestedOutput(BaseModel):
    """An output that the client wants."""

    model_config = ConfigDict(strict=True)
    name: str


class InferenceRequest(BaseModel):
    """Records to label. The same ``id`` again gets the same answer."""

    model_config = ConfigDict(strict=True)
    id: str | None = Field(None, min_length=1, max_length=_LARGEST_ID)
    inputs: list[InputTensor] = Field(min_length=1, max_length=10_000)
    outputs: list[RequestedOutput] | None = None


class OutputTensor(BaseModel):
    """Some values of an answer."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any]


class InferenceResponse(BaseModel):
    """Labels of records."""

    model_name: str
    model_version: str
    id: str
    outputs: list[OutputTensor]


class ErrorResponse(BaseModel):
    """Why there is no answer."""

    error: str


def parse_request(body: bytes) -> InferenceRequest:
    """Return the request that a body holds."""
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ParameterError(
            f"The body must be JSON: {error.msg[:80]} at character {error.pos}. NaN "
            "is none: write null for a missing value."
        ) from None
    return checked_request(given)


def checked_request(given: Any) -> InferenceRequest:
    """Return a request, if it is one."""
    try:
        return InferenceRequest.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise ParameterError(f"{where:.100}: {first['msg']:.200}.") from None


def wanted_outputs(request: InferenceRequest, offered: list[str]) -> list[str]:
    """Return the names of the outputs to send: all, unless some are asked for."""
    names = [one.name for one in request.outputs or []]
    for name in names:
        if name not in offered:
            raise ParameterError(
                f"There is no output {name!r:.60}; there are {', '.join(offered)}."
            )
    return names or offered


def datatype_of(kind: str) -> str:
    """Return the datatype that a column of a kind takes."""
    return "FP64" if kind == "number" else "BYTES"


def records_of(
    request: InferenceRequest, columns: Mapping[str, str], *, most_rows: int
) -> dict[str, Any]:
    """Return the columns of the records that a request holds.

    ``columns`` has the kind of each; inputs are one tensor a column, or one matrix
    with the columns in this order.
    """
    inputs = request.inputs
    first = inputs[0]
    as_matrix = len(first.shape) == 2 and first.shape[1] != 1
    if len(inputs) == 1 and (as_matrix or _is_nameless(first, columns)):
        found = _columns_of_matrix(first, columns)
    else:
        found = _columns_by_name(inputs, columns)
    n = len(next(iter(found.values())))
    if not 1 <= n <= most_rows:
        raise ParameterError(f"A request must have 1 to {most_rows} records, got {n}.")
    return found


def _is_nameless(tensor: InputTensor, columns: Mapping[str, str]) -> bool:
    return len(columns) == 1 and tensor.name not in columns and len(tensor.shape) == 2


def _columns_by_name(
    inputs: list[InputTensor], columns: Mapping[str, str]
) -> dict[str, Any]:
    by_name = {tensor.name: tensor for tensor in inputs}
    if len(by_name) < len(inputs):
        raise ParameterError("Inputs must have different names.")
    if unknown := [name for name in by_name if name not in columns]:
        raise ParameterError(
            f"There is no input {unknown[0]!r:.60}; there are "
            f"{', '.join(columns):.400}."
        )
    if lacking := [name for name in columns if name not in by_name]:
        raise ParameterError(f"The input {lacking[0]!r} is missing.")
    if len({tensor.shape[0] for tensor in inputs}) > 1:
        raise ParameterError("Inputs must have one first dimension: one cell a record.")
    return {
        name: _column(name, kind, by_name[name].datatype, _cells(by_name[name], 1))
        for name, kind in columns.items()
    }


def _columns_of_matrix(
    tensor: InputTensor, columns: Mapping[str, str]
) -> dict[str, Any]:
    width = len(columns)
    if tensor.shape[1] != width:
        raise ParameterError(
            f"Input {tensor.name!r:.60} must have {width} columns "
            f"({', '.join(columns):.400}), got {tensor.shape[1]}."
        )
    cells = _cells(tensor, width)
    return {
        name: _column(name, kind, tensor.datatype, cells[j::width])
        for j, (name, kind) in enumerate(columns.items())
    }


def _cells(tensor: InputTensor, width: int) -> list[Any]:
    """Return the values of a tensor, flat, each of its datatype."""
    name, shape, data = tensor.name, tensor.shape, tensor.data
    if len(shape) == 2 and shape[1] != width:
        raise ParameterError(f"Input {name!r:.60} must have one column.")
    n = shape[0] * width
    if min(shape) < 0 or n > _CELLS:
        raise ParameterError(f"Input {name!r:.60} has an impossible shape.")
    if data and all(type(row) is list for row in data):
        if len(shape) < 2 or any(len(row) != width for row in data):
            raise ParameterError(f"The data of {name!r:.60} do not have its shape.")
        data = [cell for row in data for cell in row]
    if len(data) != n:
        raise ParameterError(
            f"Input {name!r:.60} must have {n} values by its shape, got {len(data)}."
        )
    _check_types(name, tensor.datatype, data)
    return data


def _check_types(name: str, datatype: str, cells: list[Any]) -> None:
    """Refuse values that are not of a datatype."""
    allowed: tuple[type, ...] = {"FP": (int, float), "BO": (bool,), "BY": (str,)}.get(
        datatype[:2], (int,)
    )
    found = set(map(type, cells)) - {type(None)}
    sound = found <= set(allowed)
    if sound and found and "INT" in datatype:
        size = int(datatype.partition("INT")[2])
        low, high = (
            (0, 2**size) if datatype[0] == "U" else (-(2**size) // 2, 2**size // 2)
        )
        given = [cell for cell in cells if cell is not None]
        sound = low <= min(given) and max(given) < high
    if not sound:
        raise ParameterError(
            f"Input {name!r:.60} must hold values of its datatype {datatype}, or null."
        )


def _column(name: str, kind: str, datatype: str, cells: list[Any]) -> Any:
    """Return the cells of a column; refuse a type that the column does not take."""
    if kind != "number" and datatype != "BYTES":
        raise ParameterError(f"Column {name!r:.60} takes BYTES, got {datatype}.")
    if kind == "number" and datatype == "BYTES":
        numbers = convert(cells, "number")
        given = np.array([cell is not None and cell.strip() != "" for cell in cells])
        if (np.isnan(numbers) & given).any():
            raise ParameterError(
                f"Column {name!r:.60} takes numbers, and has a text that is none."
            )
        return numbers
    if kind == "number":
        return np.array([np.nan if cell is None else cell for cell in cells], float)
    return np.array(cells, dtype=object)
