"""A ledger with two open panels and a published model, for all tests of the service."""

import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from mapl import Ledger, PrivateClassifier

sys.path.insert(0, str(Path(__file__).parent.parent / "online"))
import test_panel as panels

pytest.register_assert_rewrite("service_requests")


@dataclass
class Place:
    """Where things are."""

    folder: Path
    url: str

    @property
    def settings(self) -> dict[str, Any]:
        folder = self.folder
        return {
            "panels": [str(folder / "triage"), str(folder / "second")],
            "models": [str(folder / "model")],
        }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Folders of panels and of a model, with a state folder of their own."""
    folder = tmp_path_factory.mktemp("service")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAPL_STATE", str(folder / "state"))
        url = f"sqlite:///{folder}/budget.db"
        Ledger(url, create=True).create("d", epsilon=1000, delta=1e-2)
        first = panels.make_panel(folder / "triage", url)
        first.open(epsilon=20, cutoff=40)
        second = panels.make_panel(folder / "second", url)
        second.open(epsilon=500, mechanism="dissent", queries=10_000)
        model = PrivateClassifier(epsilon=2, classes=["no", "yes"])
        data = panels.DATA
        model.fit(data[["a", "town"]], data["y"], X_public=panels.POOL)
        model.save(folder / "model")
        yield Place(folder, url)


@pytest.fixture(autouse=True)
def state(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The state folder that goes with the panels; tokens do not outlive a test."""
    path = place.folder / "state"
    monkeypatch.setenv("MAPL_STATE", str(path))
    yield path
    (path / "tokens.json").unlink(missing_ok=True)


@pytest.fixture
def client(place: Place) -> Iterator[TestClient]:
    """A client of the application, in this process."""
    from mapl.service.server import Settings, app_of

    app = app_of(Settings(**place.settings))
    with TestClient(
        app, base_url="http://localhost", raise_server_exceptions=False
    ) as made:
        yield made


@dataclass
class Server:
    """A server that runs in a thread of this process."""

    url: str
    app: Any
    connections: set[Any]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@pytest.fixture
def running(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A real server, with short patience."""
    import uvicorn

    from mapl.service import server
    from mapl.service.core import Limits

    monkeypatch.setattr(server, "_IDLE_SECONDS", 1.0)
    limits = Limits(body_seconds=1.0, rate=1e6)
    app = server.app_of(server.Settings(**place.settings, limits=limits))
    options: dict[str, Any] = {"log_config": None, "access_log": False, "ws": "none"}
    config = uvicorn.Config(app, http=server.PatientProtocol, **options)
    made = uvicorn.Server(config)
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=made.run, args=([listening],), daemon=True)
    thread.start()
    while not made.started:
        time.sleep(0.01)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    yield Server(url, app, made.server_state.connections)
    made.should_exit = True
    thread.join(20)
    listening.close()
