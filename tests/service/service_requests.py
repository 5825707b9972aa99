"""Requests that tests send."""

from typing import Any

INFER = "/v2/models/{}/infer"


def tensor(name: str, datatype: str, data: list[Any], *shape: int) -> dict[str, Any]:
    return {
        "name": name,
        "shape": list(shape) or [len(data)],
        "datatype": datatype,
        "data": data,
    }


def body(
    numbers: list[Any], towns: list[Any] | None = None, **more: Any
) -> dict[str, Any]:
    towns = ["York"] * len(numbers) if towns is None else towns
    inputs = [tensor("a", "FP64", numbers), tensor("town", "BYTES", towns)]
    return {"inputs": inputs, **more}


def outputs(response: Any) -> dict[str, list[Any]]:
    assert response.status_code == 200, response.text
    return {one["name"]: one["data"] for one in response.json()["outputs"]}
