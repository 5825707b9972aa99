"""A real server: other people's clients, slow ones, kills, TLS, several workers."""

import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from service_requests import INFER, body

from conftest import Place, Server, free_port
from mapl import Ledger, Panel
from mapl.cli import main
from mapl.errors import LedgerError, ParameterError
from mapl.online.panel import Answers, Question
from mapl.records.schema import Column, Schema
from mapl.records.table import canonical_table
from mapl.service import batching, server
from mapl.service.batching import Batcher, BusyError
from mapl.service.core import Limits
from mapl.service.server import Settings
from mapl.service.tokens import Tokens

KILLS = int(os.environ.get("MAPL_KILLS", "5"))


def post(url: str, request: Any, timeout: float = 30, context: Any = None) -> Any:
    sent = urllib.request.Request(url, json.dumps(request).encode())
    try:
        with urllib.request.urlopen(sent, timeout=timeout, context=context) as found:
            return found.status, json.load(found)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_tritons_client(running: Server) -> None:
    http = pytest.importorskip("tritonclient.http")
    client = http.InferenceServerClient(running.url.removeprefix("http://"))
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("second")
    assert client.get_model_metadata("second")["platform"] == "mapl_panel"
    numbers = http.InferInput("a", [2], "FP64")
    numbers.set_data_from_numpy(np.array([4.0, -4.0]), binary_data=False)
    towns = http.InferInput("town", [2], "BYTES")
    towns.set_data_from_numpy(np.array(["York", "York"], object), binary_data=False)
    for name, outputs in (("second", ["label", "abstained"]), ("model", None)):
        wanted = outputs and [
            http.InferRequestedOutput(one, binary_data=False) for one in outputs
        ]
        found = client.infer(name, [numbers, towns], request_id="t-1", outputs=wanted)
        assert found.as_numpy("label").tolist() == ["yes", "no"]
        assert found.get_response()["id"] == "t-1"
    assert found.as_numpy("probability").shape == (2, 2)
    with pytest.raises(Exception, match="Nothing is served as"):
        client.get_model_metadata("none")
    client.close()


def test_kserves_client(running: Server) -> None:
    """It has an environment of its own: its dependencies do not go with ours."""
    python = os.environ.get("MAPL_KSERVE_PYTHON")
    if python is None:
        pytest.skip("MAPL_KSERVE_PYTHON names no Python with kserve")
    script = Path(__file__).parent / "kserve_client.py"
    subprocess.run([python, script, running.url], check=True, timeout=120)


def test_slow_and_silent_clients_do_not_stop_the_others(
    running: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = running.url.removeprefix("http://").split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(20)]
    half = b"POST /v2/models/model/infer HTTP/1.1\r\nhost: localhost\r\n"
    for i, one in enumerate(silent):
        if i % 2:
            one.sendall(half + (b"content-length: 90\r\n\r\n{" if i % 4 == 1 else b""))
    start = time.monotonic()
    assert post(running.url + INFER.format("model"), body([4]))[0] == 200
    assert time.monotonic() - start < 3
    for i, one in enumerate(silent):  # the server hangs up on all of them
        one.settimeout(15)
        said = one.recv(1000)
        assert said == b"" or (i % 4 == 1 and b" 408 " in said)
        one.close()


def test_who_does_not_read_is_cut_off(running: Server) -> None:
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(1000):
            one.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n")
        end = time.monotonic() + 20
        while not running.connections and time.monotonic() < end:
            time.sleep(0.01)  # a busy server takes it a little later
        assert running.connections
        while running.connections and time.monotonic() < end:
            time.sleep(0.05)
        assert not running.connections


def test_a_client_who_leaves_stops_nothing(running: Server) -> None:
    host, port = running.url.removeprefix("http://").split(":")
    for sent in (b"", b"GET / HTTP/1.1\r\n", b"nonsense\r\n\r\n"):
        with socket.create_connection((host, int(port))) as one:
            one.sendall(sent)
    with socket.create_connection((host, int(port))) as one:
        one.sendall(
            b"POST /v2/models/model/infer HTTP/1.1\r\nhost: localhost\r\n"
            b"content-length: 10\r\n\r\n"
        )
    assert post(running.url + INFER.format("model"), body([4]))[0] == 200


def test_a_busy_connection_is_kept(running: Server) -> None:
    import http.client

    host, port = running.url.removeprefix("http://").split(":")
    one = http.client.HTTPConnection(host, int(port))
    end = time.monotonic() + 3 * server._IDLE_SECONDS
    while time.monotonic() < end:
        one.request("GET", "/v2/health/live")
        first = one.sock
        assert one.getresponse().read()
        assert one.sock is first
    one.close()


def test_simultaneous_requests_are_asked_together(
    running: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    batcher = running.app._app.state.service.served["second"]._batcher
    asked = batcher._answer

    def slowly(questions: list[Question]) -> Any:
        sizes.append(len(questions))
        time.sleep(0.1)
        return asked(questions)

    monkeypatch.setattr(batcher, "_answer", slowly)
    url = running.url + INFER.format("second")
    one = body([4], id=f"same-{secrets.token_hex(4)}")
    other = {**body([-4]), "id": one["id"]}
    with ThreadPoolExecutor(12) as pool:
        again = [pool.submit(post, url, one) for _ in range(4)]
        many = [pool.submit(post, url, body([float(i)])) for i in range(8)]
        clash = pool.submit(post, url, other)
    assert max(sizes) > 3
    codes = {found.result()[0] for found in (*again, clash)}
    assert codes == {200, 409}
    replies = [found.result()[1] for found in again if found.result()[0] == 200]
    assert all(reply == replies[0] for reply in replies)
    assert all(found.result()[0] == 200 for found in many)


def test_one_bad_question_does_not_spoil_the_others() -> None:
    import asyncio

    def answer(questions: list[Question]) -> list[Any]:
        if any(one.id == "bad" for one in questions):
            raise ParameterError("bad")
        return [Answers([one.id], [False]) for one in questions]

    table = canonical_table(pd.DataFrame({"a": [1]}), Schema({"a": Column("number")}))

    async def run(answer: Any, *names: str, rows: int = 1) -> list[Any]:
        batcher = Batcher(answer)
        found = [
            batcher.ask(Question(table.take(np.zeros(rows, int)), n)) for n in names
        ]
        return await asyncio.gather(*found, return_exceptions=True)

    good, bad, last = asyncio.run(run(answer, "x", "bad", "y"))
    assert (good.labels, last.labels) == (["x"], ["y"])
    assert isinstance(bad, ParameterError)

    def fail(questions: list[Question]) -> Any:
        raise LedgerError("gone")

    assert {type(one) for one in asyncio.run(run(fail, "x", "y"))} == {LedgerError}
    found = asyncio.run(run(answer, *(f"n{i}" for i in range(5)), rows=900))
    assert [one.labels[0] for one in found] == [f"n{i}" for i in range(5)]
    many = asyncio.run(run(answer, *map(str, range(1200))))
    assert sum(isinstance(one, BusyError) for one in many) == 200

    async def leave() -> None:
        batcher = Batcher(answer)
        task = asyncio.create_task(batcher.ask(Question(table, "gone")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0.05)

    asyncio.run(leave())
    assert batching._MOST_WAITING == 1000


@contextmanager
def started(place: Place, *options: str) -> Iterator[tuple[Any, str]]:
    """Run mapl serve as users do; yield its process and URL."""
    command = [str(Path(sys.executable).parent / "mapl"), "serve", "--port", "0"]
    command += ["--panel", str(place.folder / "second"), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        said = json.loads(process.stderr.readline())
        assert said["event"] == "listening"
        reading = threading.Thread(target=process.stderr.read)
        reading.start()  # or it would wait for somebody to read its log
        yield process, said["url"]
        process.terminate()
        process.wait(30)
        reading.join()


def wait_for(url: str, context: Any = None) -> None:
    for _ in range(200):
        try:
            with urllib.request.urlopen(f"{url}/v2/health/live", context=context):
                return
        except OSError:
            time.sleep(0.1)


def test_kills_contradict_no_reply(place: Place) -> None:
    """Under load, at random moments; the same ids again get the same replies."""
    rng = np.random.default_rng()
    known: dict[str, Any] = {}
    spent = Ledger(place.url).balance("d").epsilon_spent

    def client(url: str, number: int, round_: int) -> None:
        for i in range(100):
            name = f"kill-{number}-{i % 7}-{round_ // 2}"
            request = body([0.01 * number, -0.3], ["Bath", "Bath"], id=name)
            try:
                code, reply = post(url + INFER.format("second"), request)
            except (OSError, HTTPException):
                return
            assert code == 200, reply
            assert known.setdefault(name, reply) == reply

    for round_ in range(KILLS):
        with started(place) as (process, url), ThreadPoolExecutor(4) as pool:
            wait_for(url)
            running = [pool.submit(client, url, i, round_) for i in range(4)]
            time.sleep(float(rng.uniform(0.05, 1.0)))
            process.send_signal(signal.SIGKILL)
            process.wait()
            for one in running:
                one.result()
    panel = Panel.load(place.folder / "second")
    for name, reply in known.items():
        frame = pd.DataFrame({"a": [0.01 * int(name.split("-")[1]), -0.3]})
        found = panel.ask(frame.assign(town="Bath"), id=name)
        labels = ["" if one is None else one for one in found.labels]
        assert labels == reply["outputs"][0]["data"]
    ledger = Ledger(place.url)
    assert ledger.balance("d").epsilon_spent == spent
    assert ledger.verify() > 0


def test_several_workers_take_turns(place: Place) -> None:
    with (
        started(place, "--workers", "2", "--rate", "1e6") as (process, url),
        ThreadPoolExecutor(6) as pool,
    ):
        wait_for(url)
        found = [
            pool.submit(post, url + INFER.format("second"), body([0.1 * (i % 9)]))
            for i in range(40)
        ]
        assert {one.result()[0] for one in found} == {200}
    assert process.returncode == 0


def test_tls(place: Place, tmp_path: Path) -> None:
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (tmp_path / "cert.pem").write_bytes(made.public_bytes(pem))
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "key.pem").write_bytes(private)
    files = ("--ssl-certfile", str(tmp_path / "cert.pem"))
    files += ("--ssl-keyfile", str(tmp_path / "key.pem"))
    context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    with started(place, *files) as (_, url):
        assert url.startswith("https://")
        url = url.replace("127.0.0.1", "localhost")
        wait_for(url, context)
        assert post(url + INFER.format("second"), body([4]), context=context)[0] == 200


def test_strangers_are_not_let_in(place: Place, monkeypatch: Any) -> None:
    with pytest.raises(ParameterError, match="there are none"):
        server.serve(Settings(**place.settings, host="0.0.0.0"))
    Tokens().create(scope="analyst", datasets=["d"], expires="1h", name="x")
    ran: list[Any] = []
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: ran.append(sockets))
    server.serve(Settings(**place.settings, host="0.0.0.0", port=free_port()))
    assert len(ran) == 1
    ran[0][0].close()
    server._check(Settings(host="example.org", ssl_certfile="cert.pem"))
    guarded = server.app_of(Settings(**place.settings, host="0.0.0.0"))
    (place.folder / "state" / "tokens.json").unlink()
    from starlette.testclient import TestClient

    client = TestClient(guarded, base_url="http://localhost")
    assert client.get("/v2/models/second").status_code == 401


def test_a_place_that_is_taken_is_named(place: Place, monkeypatch: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(
            main, ["serve", "--panel", place.settings["panels"][1], "--port", str(port)]
        )
    assert done.exit_code == 2
    assert "cannot be listened on" in done.stderr
    done = CliRunner().invoke(main, ["serve"])
    assert "Give something to serve" in done.stderr
    with pytest.raises(ParameterError, match="port must be 0 to 65535"):
        server._listen(Settings(host="::1", port=70_000))
    with socket.socket() as unbound:
        assert server._address(Settings(host="::1"), unbound) == "http://[::1]:0"
    monkeypatch.setitem(sys.modules, "mapl.service.server", None)
    done = CliRunner().invoke(main, ["serve"])
    assert "pip install 'mapl[serve]'" in done.stderr


def test_workers_learn_what_to_serve(place: Place, monkeypatch: Any) -> None:
    settings = Settings(**place.settings, workers=2, limits=Limits(most_rows=7))
    assert Settings.from_json(settings.as_json()) == settings
    given: list[Any] = []
    monkeypatch.setattr("uvicorn.run", lambda *a, **k: given.append((a, k)))
    server.serve(settings)
    assert given[0][1]["workers"] == 2
    assert server.app_of_worker()._app.state.service.limits.most_rows == 7
    monkeypatch.delenv("MAPL_SERVE")
