"""A ledger with two open panels and a published model, for all tests of the service."""

import sys
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
