"""The rooms of docs/design.md, checked against the imports that are really there."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "mapl"
FILES = sorted(SOURCE.rglob("*.py"))
MOST_LINES, MOST_BODY_LINES = 600, 45

# From the bottom up; a room imports only rooms below it.
ORDER = [
    "errors",
    "progress",
    "interpreter",
    "arrays",
    "engines",
    "learners",
    "privacy",
    "records",
    "features",
    "teachers",
    "ledger",
    "scale",
    "release",
    "student",
    "publish",
    "planning",
    "online",
    "methods",
    "parameters",
    "rehearsal",
    "request",
    "reading",
    "streaming",
    "estimator",
    "trials",
    "audit",
    "service",
    "cli",
]
# Beyond the standard library and numpy, who may import what.
ALLOWED = {
    "progress": {"rich"},
    "engines": {"cloudpickle", "ray"},
    "learners": {"joblib", "sklearn"},
    "privacy": {"cryptography", "dp_accounting", "scipy"},
    "records": {
        *("fsspec", "openpyxl", "pandas", "polars", "pyarrow", "scipy", "sklearn"),
        "sqlalchemy",
    },
    "features": {"scipy", "sklearn", "threadpoolctl"},
    "teachers": {"cloudpickle", "joblib", "scipy", "sklearn", "threadpoolctl"},
    "ledger": {"cryptography", "psycopg", "sqlalchemy"},
    "scale": {"cloudpickle", "pyarrow"},
    "student": {"scipy", "sklearn", "threadpoolctl"},
    "publish": {"cryptography", "matplotlib", "pandas", "skops", "sklearn"},
    "planning": {"scipy", "sklearn"},
    "methods": {"sklearn"},
    "rehearsal": {"sklearn"},
    "reading": {"joblib", "sklearn", "threadpoolctl"},
    "streaming": {"joblib"},
    "estimator": {"sklearn", "threadpoolctl"},
    "trials": {"sklearn"},
    "audit": {"pandas", "scipy", "sklearn"},
    "service": {
        *("anyio", "fastapi", "jinja2", "orjson", "pandas", "prometheus_client"),
        *("pydantic", "starlette", "uvicorn"),
    },
    "cli": {"click", "matplotlib", "pandas", "rich", "rich_click", "sklearn"},
}


def room(path: Path) -> str:
    """Return the top-level name that a file belongs to."""
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Return every module that a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= names if base.split(".")[0] == "mapl" else {base}
    return found - {"mapl.__version__"}


def names_in(path: Path) -> set[str]:
    """Return every name and attribute that a file uses."""
    tree = ast.parse(path.read_text())
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names | {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}


def calls_in(path: Path) -> set[str]:
    """Return the name of every method that a file calls on another object."""
    tree = ast.parse(path.read_text())
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {
        call.attr
        for call in calls
        if isinstance(call, ast.Attribute)
        and not (isinstance(call.value, ast.Name) and call.value.id == "self")
    }


def relative(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_there_are_files_to_check() -> None:
    assert len(FILES) > 60
    assert {room(path) for path in FILES} == {*ORDER, "__init__"}


def test_every_room_is_in_the_design() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    documented = re.findall(r"^\| `(\w+)(?:/|\.py)?` \|", text, re.M)
    assert documented == ORDER


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_imports_go_down_only(path: Path) -> None:
    if path == SOURCE / "__init__.py":
        return
    for name in imports(path):
        if name.startswith("mapl."):
            other = name.split(".")[1]
            assert ORDER.index(other) <= ORDER.index(room(path)), name


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_room_uses_only_what_it_may(path: Path) -> None:
    allowed = {"mapl", "numpy", *sys.stdlib_module_names}
    allowed |= ALLOWED.get(room(path), set())
    assert {name.split(".")[0] for name in imports(path)} <= allowed


def test_student_sees_no_private_room() -> None:
    for path in (SOURCE / "student").rglob("*.py"):
        rooms = {name.split(".")[1] for name in imports(path) if name[:5] == "mapl."}
        assert not rooms & {"records", "teachers", "ledger", "release"}, path


def test_noise_is_drawn_in_privacy_only() -> None:
    for path in FILES:
        samplers = {"discrete_laplace", "discrete_gaussian"} & names_in(path)
        assert not samplers or room(path) == "privacy", path


def test_mechanisms_answer_in_release_only() -> None:
    """An audit asks them about made-up votes, and publishes nothing."""
    for path in FILES:
        answers = {"answer"} & calls_in(path)
        assert not answers or room(path) in ("release", "audit"), path


def test_few_modules_draw_pictures() -> None:
    drawing = [path for path in FILES if "matplotlib" in path.read_text()]
    assert [relative(path) for path in drawing] == [
        "cli/plots.py",  # for commands
        "publish/released.py",  # in Python
    ]


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_modules_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
            assert lines <= MOST_BODY_LINES, node.name


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(*sys.modules)"
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import mapl", {"numpy", "scipy", "dp_accounting", "cryptography"}),
        ("import mapl; mapl.Ledger", {"sklearn", "pandas", "matplotlib"}),
        ("import mapl.cli", {"numpy", "scipy", "sklearn", "pandas", "skops"}),
        ("import mapl.planning", {"sklearn", "pandas", "dp_accounting"}),
        (
            "import mapl; mapl.SparseVector, mapl.NoisyMax, mapl.ChargedDissent",
            {"scipy", "dp_accounting", "sklearn", "matplotlib"},
        ),
    ],
)
def test_imports_stay_light(statement: str, heavy: set[str]) -> None:
    assert not heavy & loaded_by(statement)
