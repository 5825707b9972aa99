"""The layers of docs/design.md, held against the imports that are really there."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "mapl"
MODULES = sorted(path.stem for path in SOURCE.glob("*.py") if path.stem != "__init__")

# What beyond the standard library and numpy a module may use.
ALLOWED = {
    "progress": {"rich"},
    "noise": {"cryptography"},
    "curves": {"scipy"},
    "accounting": {"dp_accounting"},
    "journal": {"psycopg", "sqlalchemy"},
    "linear": {"scipy", "sklearn"},
    "trees": {"sklearn"},
    "teachers": {"joblib", "sklearn", "threadpoolctl"},
    "student": {"scipy", "sklearn", "threadpoolctl"},
    "estimator": {"joblib", "pandas", "sklearn"},
    "planner": {"scipy"},
    "pilot": {"joblib", "scipy", "sklearn"},
    "report": {"skops"},
    "demo": {"pandas", "sklearn"},
    "cli": {"matplotlib", "pandas", "rich", "rich_click", "sklearn", "skops"},
}


def layers() -> dict[str, int]:
    rows = re.findall(
        r"^\| (\d+) \| (.+) \|$", (ROOT / "docs/design.md").read_text(), re.M
    )
    return {
        name: int(layer)
        for layer, names in rows
        for name in re.findall(r"`(\w+)`", names)
    }


def imports(module: str) -> set[str]:
    tree = ast.parse((SOURCE / f"{module}.py").read_text())
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            found |= (
                {f"mapl.{alias.name}" for alias in node.names}
                if base == "mapl"
                else {base}
            )
    return found


def test_every_module_has_a_layer() -> None:
    assert set(layers()) == set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_strictly_down(module: str) -> None:
    level = layers()
    for name in imports(module):
        if name.startswith("mapl.") and name != "mapl.__version__":
            assert level[name.split(".")[1]] < level[module], f"{module} -> {name}"


@pytest.mark.parametrize("module", MODULES)
def test_modules_use_only_what_they_may(module: str) -> None:
    allowed = {"mapl", "numpy", *sys.stdlib_module_names, *ALLOWED.get(module, set())}
    assert {name.split(".")[0] for name in imports(module)} <= allowed


def loaded_by(module: str) -> set[str]:
    code = f"import {module}, sys; print(*sys.modules)"
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("mapl", {"numpy", "scipy", "dp_accounting", "cryptography"}),
        ("mapl.cli", {"numpy", "scipy", "sklearn", "pandas", "skops"}),
        ("mapl.mechanisms", {"scipy", "dp_accounting", "sklearn", "matplotlib"}),
    ],
)
def test_imports_stay_light(module: str, heavy: set[str]) -> None:
    assert not heavy & loaded_by(module)
