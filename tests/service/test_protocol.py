"""The Open Inference Protocol: what it accepts, answers and refuses."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from service_requests import INFER, body, outputs, tensor
from starlette.testclient import TestClient

import mapl
from conftest import Place
from mapl import Ledger, Panel
from mapl.errors import LedgerError, ParameterError
from mapl.online.panel import Panel as OnlinePanel
from mapl.service.core import Limits
from mapl.service.served import serve_all
from mapl.service.server import Settings, app_of


def ask(client: TestClient, name: str, request: Any, **more: Any) -> Any:
    return client.post(INFER.format(name), json=request, **more)


def test_health_and_metadata(client: TestClient) -> None:
    assert client.get("/v2/health/live").json()["status"] == "alive"
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2").json()["name"] == "mapl"
    assert client.get("/v2/models/triage/ready").json()["ready"] is True
    found = client.get("/v2/models/triage").json()
    assert found["inputs"] == [
        {"name": "a", "datatype": "FP64", "shape": [-1]},
        {"name": "town", "datatype": "BYTES", "shape": [-1]},
    ]
    assert [one["name"] for one in found["outputs"]] == ["label", "abstained"]
    assert found["properties"]["classes"] == ["no", "yes"]
    model = client.get("/v2/models/model").json()
    assert model["outputs"][1] == {
        "name": "probability",
        "datatype": "FP64",
        "shape": [-1, 2],
    }
    assert model["properties"]["epsilon"] <= 2


def test_a_panel_answers_once_for_an_id(client: TestClient, place: Place) -> None:
    asked = body([4, -4, None], ["Bath", None, "Oslo"], id="once")
    first = ask(client, "second", asked)
    assert outputs(first)["label"][:2] == ["yes", "no"]
    assert first.json()["id"] == "once"
    assert ask(client, "second", asked).json() == first.json()
    other = ask(client, "second", body([4], id="once"))
    assert other.status_code == 409
    assert "other records" in other.json()["error"]
    # The same records as a matrix of texts, in Python, and in a server that starts anew
    matrix = tensor("x", "BYTES", [["4", "Bath"], ["-4", None], [None, "Oslo"]], 3, 2)
    again = ask(client, "second", {"inputs": [matrix], "id": "once"})
    assert again.json() == first.json()
    frame = pd.DataFrame({"a": [4, -4, np.nan], "town": ["Bath", None, "Oslo"]})
    found = Panel.load(place.folder / "second").ask(frame, id="once")
    assert ["" if one is None else one for one in found.labels] == outputs(first)[
        "label"
    ]
    assert outputs(ask(client, "second", body([4])))["abstained"] in ([True], [False])


def test_a_published_model_answers_with_probabilities(
    client: TestClient, place: Place
) -> None:
    found = outputs(ask(client, "model", body([2, -3.5], ["Bath", None])))
    model = mapl.load(place.folder / "model")
    frame = pd.DataFrame({"a": [2, -3.5], "town": ["Bath", None]})
    assert found["label"] == model.predict(frame).tolist()
    assert found["probability"] == model.predict_proba(frame).ravel().tolist()
    wanted = body([2], outputs=[{"name": "label"}])
    assert list(outputs(ask(client, "model", wanted))) == ["label"]


def test_a_model_without_probabilities(
    client: TestClient, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mapl.publish.loading import PublishedModel

    monkeypatch.setattr(PublishedModel, "has_probabilities", False)
    app = app_of(Settings(models=place.settings["models"]))
    bare = TestClient(app, base_url="http://localhost")
    assert list(outputs(ask(bare, "model", body([2])))) == ["label"]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ([], "the body: Input should be"),
        ({}, "inputs: Field required"),
        ({"inputs": []}, "inputs: List should have at least 1"),
        (body([1], id=""), "id: String should have at least 1"),
        (body([1], id=7), "id: Input should be a valid string"),
        (body([1], outputs=[{"name": "x"}]), "There is no output 'x'"),
        (body([]), "1 to 10000 records, got 0"),
        (body([0.5] * 10_001), "1 to 10000 records, got 10001"),
        (body(["1"]), "values of its datatype FP64"),
        (body([True]), "values of its datatype FP64"),
        (body([[1]]), "do not have its shape"),
        (body([1], [1]), "values of its datatype BYTES"),
        (body([1], ["York", "Bath"]), "one first dimension"),
        ({"inputs": [tensor("a", "FP64", [1])]}, "input 'town' is missing"),
        ({"inputs": [tensor("b", "FP64", [1])]}, "no input 'b'; there are a, town"),
        ({"inputs": [tensor("a", "FP64", [1])] * 2}, "different names"),
        ({"inputs": [tensor("a", "FP64", [1], 2)] * 1}, "'town' is missing"),
        ({"inputs": [tensor("m", "FP64", [1, 2], 1, 2)]}, "'town' takes BYTES"),
        ({"inputs": [tensor("m", "BYTES", ["1"] * 3, 1, 3)]}, "must have 2 columns"),
        ({"inputs": [tensor("m", "BYTES", ["1"] * 3, 1, 2)]}, "2 values by its shape"),
        ({"inputs": [tensor("m", "BYTES", ["one", "York"], 1, 2)]}, "a text that is"),
        ({"inputs": [tensor("m", "BYTES", [], -1, 2)]}, "impossible shape"),
        ({"inputs": [tensor("m", "BYTES", [], 10**18, 2)]}, "impossible shape"),
        ({"inputs": [tensor("m", "TEXT", ["x"])]}, "inputs.0.datatype"),
        (
            {
                "inputs": [
                    tensor("a", "FP64", [1, 2], 1, 2),
                    tensor("town", "BYTES", ["York"]),
                ]
            },
            "must have one column",
        ),
        (
            {
                "inputs": [
                    tensor("a", "UINT8", [256]),
                    tensor("town", "BYTES", ["York"]),
                ]
            },
            "datatype UINT8",
        ),
        (
            {
                "inputs": [
                    tensor("a", "INT8", [-129]),
                    tensor("town", "BYTES", ["York"]),
                ]
            },
            "datatype INT8",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    client: TestClient, request_: Any, message: str
) -> None:
    found = ask(client, "triage", request_)
    assert found.status_code == 400, found.text
    assert message in found.json()["error"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b'{"inputs": NaN}', b'"\\ud800"', b"[" * 100_000],
)
def test_what_is_no_json_is_refused(client: TestClient, content: bytes) -> None:
    found = client.post(INFER.format("triage"), content=content)
    assert found.status_code == 400
    assert set(found.json()) == {"error"}


def test_all_numeric_types_are_taken(client: TestClient) -> None:
    town = tensor("town", "BYTES", ["York", "Bath"], 2, 1)
    for kind, data in {
        "INT64": [-5, 2**62],
        "UINT8": [0, 255],
        "FP32": [1.5, -2],
        "BOOL": [True, None],
        "BYTES": ["1e3", ""],
    }.items():
        shape = (2, 1) if kind == "INT64" else (2,)
        column = tensor("a", kind, data, *shape)
        found = outputs(ask(client, "model", {"inputs": [column, town]}))
        assert len(found["label"]) == 2


def test_a_model_of_one_column_takes_a_matrix() -> None:
    from mapl.service.tensors import InferenceRequest, records_of

    asked = InferenceRequest.model_validate(
        {"inputs": [tensor("input-0", "FP64", [[1], [2]], 2, 1)]}
    )
    found = records_of(asked, {"x": "number"}, most_rows=10)
    assert found["x"].tolist() == [1, 2]


def test_other_errors_are_json(client: TestClient) -> None:
    assert ask(client, "none", body([1])).status_code == 404
    assert client.get("/v2/nothing").json() == {"error": "Not Found"}
    wrong = client.get(INFER.format("triage"))
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    page = client.get("/v2/nothing", headers={"accept": "text/html"})
    assert page.status_code == 404
    assert "That did not work" in page.text


def test_a_body_is_handed_on_once() -> None:
    import asyncio

    from mapl.service.guard import _replayed

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def read() -> list[Any]:
        receive = _replayed(b"x", gone)
        return [await receive(), await receive()]

    first, second = asyncio.run(read())
    assert first["body"] == b"x"
    assert second["type"] == "http.disconnect"


def test_bodies_have_a_limit(place: Place) -> None:
    app = app_of(Settings(**place.settings, limits=Limits(most_bytes=300)))
    small = TestClient(app, base_url="http://localhost")
    assert ask(small, "model", body([1])).status_code == 200
    assert ask(small, "model", body([1] * 200)).status_code == 413
    found = small.post(INFER.format("model"), content=iter([b"x" * 200] * 3))
    assert found.status_code == 413


def test_a_budget_that_is_spent_is_forbidden(place: Place) -> None:
    """Clients retry 429; this does not get better by waiting."""
    panel = OnlinePanel.load(place.folder / "triage")
    panel.close()
    try:
        client = TestClient(app_of(Settings(**place.settings)), "http://localhost")
        closed = ask(client, "triage", body([1]))
        assert (closed.status_code, "is not open" in closed.text) == (403, True)
        assert client.get("/v2/models/triage/ready").status_code == 503
        assert client.get("/v2/health/ready").status_code == 503
        panel.open(epsilon=2, cutoff=1)  # seen without a restart
        hard = body([-0.3] * 200, ["Bath"] * 200)
        assert True in outputs(ask(client, "triage", hard))["abstained"]
        spent = ask(client, "triage", body([4]))
        assert (spent.status_code, "were paid for" in spent.text) == (403, True)
        assert ask(client, "triage", {**hard, "id": "new"}).status_code == 403
        client.app._app.state.service.served["triage"]._looked = -9.0
        assert client.get("/v2/models/triage/ready").json()["ready"] is False
    finally:
        panel.close()
        panel.open(epsilon=20, cutoff=40)


def test_a_ledger_that_fails_is_unavailable(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def fail(*_: Any) -> None:
        raise LedgerError("disk full at /secret/place")

    monkeypatch.setattr(OnlinePanel, "ask_together", fail)
    monkeypatch.setattr(OnlinePanel, "can_answer", fail)
    client = TestClient(client.app, "http://localhost")
    app = client.app._app.state.service.served["triage"]
    app._batcher._answer = fail
    found = ask(client, "triage", body([4]))
    assert found.status_code == 503
    assert "secret" not in found.text
    assert client.get("/v2/models/triage/ready").status_code == 503


def test_a_bug_tells_nothing(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("private 4711")

    client.app._app.state.service.served["triage"]._batcher._answer = fail
    with caplog.at_level(logging.INFO, "mapl.service"):
        found = ask(client, "triage", body([4]))
    assert found.status_code == 500
    assert "4711" not in found.text + caplog.text
    assert "ZeroDivisionError at" in str([r.__dict__ for r in caplog.records])


def test_the_openapi_document_is_whole(client: TestClient) -> None:
    found = client.get("/openapi.json").json()
    assert "/v2/models/{name}/infer" in found["paths"]
    names = set(found["components"]["schemas"])
    used = set(json.dumps(found).split("#/components/schemas/")[1:])
    assert {one.partition('"')[0] for one in used} <= names
    assert "/sign-in" not in found["paths"]


def test_folders_must_have_names_of_their_own(place: Place) -> None:
    folder = place.folder / "triage"
    with pytest.raises(ParameterError, match="Two folders have the name 'triage'"):
        serve_all([folder, folder], [])
    with pytest.raises(ParameterError, match="something to serve"):
        serve_all([], [])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def requests(draw: Any) -> Any:
    """A request with a part or two that somebody else wrote."""
    found: Any = body([1.5, None], ["York", None], id=draw(st.text(max_size=3)))
    for _ in range(draw(st.integers(0, 2))):
        where = draw(st.sampled_from(["id", "inputs", "outputs", "a", "town", "more"]))
        if where in ("a", "town") and isinstance(found["inputs"], list):
            tensors = [t for t in found["inputs"] if isinstance(t, dict)]
            one: Any = next((t for t in tensors if t.get("name") == where), {})
            part = draw(st.sampled_from(["name", "shape", "datatype", "data"]))
            kinds = {
                "datatype": st.sampled_from(
                    ["INT8", "BYTES", "BOOL", "UINT64", "FP16"]
                ),
                "shape": st.lists(st.integers(-2, 3), max_size=3),
                "data": st.lists(JSON_VALUES, max_size=4),
            }
            one[part] = draw(kinds.get(part, JSON_VALUES) | JSON_VALUES)
        else:
            found[where] = draw(JSON_VALUES)
    return found


def test_generated_requests_find_no_bug(place: Place) -> None:
    """Whatever is sent, the answer is one of those that are documented."""
    client = TestClient(app_of(Settings(**place.settings)), "http://localhost")

    @settings(
        max_examples=300,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(request=requests(), name=st.sampled_from(["second", "model"]))
    def check(request: Any, name: str) -> None:
        content = json.dumps(request).encode("utf-8", "surrogatepass")
        found = client.post(INFER.format(name), content=content)
        assert found.status_code in (200, 400, 409), found.text
        if found.status_code != 200:
            assert set(found.json()) == {"error"}
            assert "Traceback" not in found.text

    check()


def test_metrics_are_for_operators(client: TestClient, place: Place) -> None:
    outputs(ask(client, "second", body([4, -4])))
    found = client.get("/metrics").text
    assert 'mapl_epsilon{dataset="d",what="limit"} 1000.0' in found
    assert 'model="second"' in found
    spent = Ledger(place.url).balance("d").epsilon_spent
    assert f'what="spent"}} {spent}' in found


def test_logs_have_one_json_object_a_line(
    client: TestClient, capsys: Any, tmp_path: Path
) -> None:
    from mapl.service.logs import configure

    loggers = [logging.getLogger(n) for n in ("mapl.service", "uvicorn")]
    before = [(one.handlers, one.propagate, one.level) for one in loggers]
    configure()
    try:
        ask(client, "second", body([4, -4], id="patient 7"))
        try:
            raise KeyError("secret")
        except KeyError:
            logging.getLogger("uvicorn.error").exception("oh")
    finally:
        for one, (handlers, propagate, level) in zip(loggers, before, strict=True):
            one.handlers, one.propagate = handlers, propagate
            one.setLevel(level)
    request, error = map(json.loads, capsys.readouterr().err.splitlines())
    assert request["event"] == "request"
    assert request["queries"] == 2
    assert request["by"] == "anonymous"
    assert error["error"].startswith("KeyError at test_protocol.py:")
    assert "secret" not in str(error)
    assert "patient" not in str(request)
