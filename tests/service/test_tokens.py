"""Tokens: made once, kept as digests, refused when they are over."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from service_requests import INFER, body, outputs
from starlette.testclient import TestClient

from conftest import Place
from mapl.cli import main
from mapl.errors import LedgerError, ParameterError
from mapl.service.callers import RateLimit, TooOftenError
from mapl.service.core import Limits
from mapl.service.server import Settings, app_of
from mapl.service.tokens import Tokens


def run(*args: str, code: int = 0) -> Any:
    done = CliRunner().invoke(main, ["token", *args])
    assert done.exit_code == code, done.output + done.stderr
    return done


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_a_token_is_printed_last_and_kept_as_a_digest(state: Path) -> None:
    done = run("create", "--scope", "analyst", "--dataset", "d", "--name", "ann")
    token = done.stdout.splitlines()[-1]
    assert len(token) > 40
    kept = (state / "tokens.json").read_text()
    assert token not in kept
    assert (state / "tokens.json").stat().st_mode & 0o777 == 0o600
    found = Tokens().find(token)
    assert found is not None
    assert (found.name, found.scope, found.datasets) == ("ann", "analyst", ("d",))
    assert "ann" in run("list").stdout
    listed = json.loads(run("list", "--json").stdout)["tokens"]
    assert [one["state"] for one in listed] == ["valid"]
    run("revoke", "ann")
    assert Tokens().find(token) is None
    assert "revoked" in run("list").stdout
    assert repr(Tokens()).startswith("Tokens(")


def test_a_token_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--scope", "operator", "--dataset", "d", "--dataset", "e", "--json")
    made = json.loads(run("create", *options, "--expires", "2h").stdout)
    assert made["datasets"] == ["d", "e"]
    assert Tokens().find(made["token"]) is not None
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3 * 3600)
    assert Tokens().find(made["token"]) is None
    assert "expired" in run("list").stdout
    far = json.loads(run("create", *options, "--expires", "2990-01-31").stdout)
    assert far["expires"] == "2990-01-31T00:00:00+00:00"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--scope", "root", "--dataset", "d"), "scope must be one of"),
        (("--scope", "analyst", "--dataset", " "), "dataset must be a name"),
        (("--scope", "analyst", "--dataset", "d", "--name", "a b"), "1 to 60 letters"),
        (("--scope", "analyst", "--dataset", "d", "--expires", "soon"), "12h or 30d"),
        (("--scope", "analyst", "--dataset", "d", "--expires", "1999-01-01"), "future"),
    ],
)
def test_bad_tokens_are_refused(options: tuple[str, ...], message: str) -> None:
    assert message in run("create", *options, code=2).stderr
    assert Tokens().all() == []


def test_names_are_unique_and_must_exist(state: Path) -> None:
    Tokens().create(scope="analyst", datasets=["d"], name="x")
    with pytest.raises(ParameterError, match="a token 'x' already"):
        Tokens().create(scope="analyst", datasets=["d"], name="x")
    assert "There is no token" in run("revoke", "y", code=2).stderr
    (state / "tokens.json").write_text("nonsense")
    with pytest.raises(LedgerError, match="cannot be read"):
        Tokens().find("x")


def test_once_there_are_tokens_callers_need_one(client: TestClient) -> None:
    assert client.get("/v2/models/triage").status_code == 200
    tokens = Tokens()
    ann = tokens.create(scope="analyst", datasets=["d"], name="ann")
    other = tokens.create(scope="operator", datasets=["other"], name="otto")
    chief = tokens.create(scope="operator", datasets=["d"], name="chief")
    asked, where = body([4], id="by-token"), INFER.format("second")
    for headers in ({}, bearer("nonsense"), bearer("é"), {"authorization": "Basic x"}):
        raw = {n.encode(): v.encode() for n, v in headers.items()}
        found = client.post(where, json=asked, headers=raw)  # type: ignore[arg-type]
        assert found.status_code == 401, headers
        assert found.headers["www-authenticate"] == "Bearer"
    hidden = client.post(where, json=asked, headers=bearer(other))
    assert hidden.status_code == 404
    nothing = client.post(INFER.format("nothing"), json=asked, headers=bearer(other))
    assert nothing.text.replace("nothing", "second") == hidden.text
    for path in ("/v2/models/second/", "/v2/", "/metrics/", "/sign-in/"):
        found = client.get(path, headers={"host": "elsewhere"}, follow_redirects=False)
        assert (found.status_code, "location" in found.headers) == (404, False)
    assert client.get("/v2/models/model", headers=bearer(other)).status_code == 200
    outputs(client.post(where, json=asked, headers=bearer(ann)))
    assert client.get("/metrics", headers=bearer(ann)).status_code == 403
    assert 'dataset="d"' in client.get("/metrics", headers=bearer(chief)).text
    shown = client.get("/metrics", headers=bearer(other)).text
    assert 'dataset="d"' not in shown
    assert 'model="second"' not in shown
    assert client.get("/v2/health/ready").status_code == 200
    tokens.revoke("ann")
    assert client.post(where, json=asked, headers=bearer(ann)).status_code == 401
    for name in ("otto", "chief"):
        tokens.revoke(name)
    assert client.get("/v2/models/triage").status_code == 401  # not open again


def test_who_asked_is_in_the_ledger(client: TestClient, place: Place) -> None:
    from mapl import Ledger

    ann = Tokens().create(scope="analyst", datasets=["d"], name="ann")
    asked = body([4, -4])
    outputs(client.post(INFER.format("second"), json=asked, headers=bearer(ann)))
    note = Ledger(place.url).newest_answers("d", n=1)[0]
    assert (note["by"], note["queries"]) == ("ann", 2)
    assert set(note) == {"who", "asked_at", "panel", "by", "queries", "abstained"}


def test_without_tokens_only_this_machine_is_answered(client: TestClient) -> None:
    path = "/v2/models/triage"
    evil = ["evil.example", "10.0.0.7", "localhost.evil.example:80", "", "[", "a`b.c"]
    for host in (*evil, "localhost@evil.example", 'a"b.c', "127.0.0.1.evil.example"):
        found = client.get(path, headers={"host": host})
        assert found.status_code == 403, host
    proxied = client.get(path, headers={"x-forwarded-for": "10.0.0.7"})
    assert proxied.status_code == 403
    for host in ("127.0.0.1:99", "[::1]:8000", "localhost"):
        assert client.get(path, headers={"host": host}).status_code == 200
    cross = {"sec-fetch-site": "cross-site"}
    other = {"origin": "http://evil.example"}
    for headers in (cross, other):
        for where in (INFER.format("triage"), "/sign-in", "/sign-out"):
            assert client.post(where, headers=headers).status_code == 403
    own = {"origin": "http://localhost", "sec-fetch-site": "same-origin"}
    asked = client.post(INFER.format("model"), json=body([4]), headers=own)
    assert asked.status_code == 200


def test_a_door_that_was_shut_stays_shut(client: TestClient, state: Path) -> None:
    Tokens().create(scope="analyst", datasets=["d"])
    assert client.get("/v2/models/triage").status_code == 401
    (state / "tokens.json").write_text("[]")
    assert client.get("/v2/models/triage").status_code == 401
    (state / "tokens.json").unlink()
    assert client.get("/v2/models/triage").status_code == 401
    (state / "tokens.json").write_text("nonsense")
    token = bearer("mapl_x")
    assert client.get("/v2/models/triage", headers=token).status_code == 503


def test_strangers_send_no_large_body(client: TestClient) -> None:
    ann = Tokens().create(scope="analyst", datasets=["d"])
    large, where = body([1.5] * 3000), INFER.format("model")
    assert client.post(where, json=large).status_code == 401
    assert (
        client.post(where, json=large, headers={"authorization": "x"}).status_code
        == 401
    )
    assert client.post(where, json=large, headers=bearer(ann)).status_code == 200


def test_callers_have_a_rate(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_of(Settings(**place.settings, limits=Limits(rate=2)))
    client = TestClient(app, base_url="http://localhost")
    codes = [client.get("/v2/models/triage").status_code for _ in range(4)]
    assert codes[:2] == [200, 200]
    assert codes[-1] == 429
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    limit = RateLimit(0.5)
    limit.count("a")
    limit.count("b")
    with pytest.raises(TooOftenError):
        limit.count("a")
    monkeypatch.setattr(time, "monotonic", lambda: now + 2)
    limit.count("a")
    with pytest.raises(ParameterError, match="rate must be"):
        RateLimit(0)
