"""Commands inside a folder of a stranger, which is full of modules."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

COMMAND = Path(sys.executable).with_name("mapl")
# What mapl imports, sooner or later, and what Python does before its first line.
MODULES = {
    *("json", "pickle", "struct", "socket", "random", "tempfile", "pathlib", "re"),
    *(
        "numpy",
        "pandas",
        "scipy",
        "sklearn",
        "joblib",
        "cloudpickle",
        "pyarrow",
        "mapl",
    ),
    *(
        "skops",
        "cryptography",
        "sqlalchemy",
        "click",
        "rich",
        "rich_click",
        "encodings",
    ),
    *("sitecustomize", "usercustomize", "site", "os", "typing", "threading", "uvicorn"),
    *("fastapi", "jinja2", "matplotlib", "openpyxl", "fsspec", "ray", "dp_accounting"),
}
SHADOW = (
    "import os; open(os.environ['MARK'], 'a').write(__name__ + ' '); os._exit(77)\n"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records, a schema, and a folder that shadows every module."""
    folder = tmp_path_factory.mktemp("shadows")
    rng = np.random.default_rng(0)
    for name, n in (("private", 600), ("public", 200), ("test", 100)):
        age, town = rng.normal(50, 20, n), rng.choice(["York", "Bath"], n)
        label = np.where(age > 50, "yes", "no")
        frame = pd.DataFrame({"age": age, "town": town, "rich": label})
        frame.to_csv(folder / f"{name}.csv", index=False)
    stranger = folder / "stranger"
    stranger.mkdir()
    for module in MODULES:
        (stranger / f"{module}.py").write_text(SHADOW)
        (stranger / module).mkdir()
        (stranger / module / "__init__.py").write_text(SHADOW)
    return folder


@pytest.fixture(scope="module")
def surroundings(place: Path) -> dict[str, str]:
    kept = {n: v for n, v in os.environ.items() if not n.startswith("PYTHON")}
    return kept | {"MAPL_STATE": str(place / "state"), "MARK": str(place / "mark")}


LEARN = (
    "learn ../private.csv --target rich --classes no,yes --public ../public.csv "
    "--epsilon 4 --out ../"
)
LEDGER = "sqlite:///../ledger.db --dataset d"
COMMANDS = {
    "schema": [
        "schema draft ../public.csv --target rich --out ../schema.json",
        "check ../private.csv --schema ../schema.json",
        "sketch ../private.csv --schema ../schema.json --epsilon 4 --out ../sketch",
    ],
    "learn": [f"{LEARN}model --test ../test.csv --baseline"],
    "a time limit": [f"{LEARN}own --estimator tree --teachers 4 --time-limit 60"],
    "learn in parts": [
        f"{LEARN}parts --memory 100MB --jobs 2 --teachers 8 --estimator tree"
    ],
    "predict": [
        "predict ../model ../test.csv --out ../predicted.csv --proba",
        "certificate verify ../model",
        "report check ../model --that epsilon<=4",
        "report show ../model",
        "certificate key ../key.pem",
    ],
    "audit": ["audit --mechanism dissent --draws 100 --epsilon 1"],
    "plan": ["plan --records 9000 --classes 2 --epsilon 1", "clean", "--version"],
    "panel": [
        f"ledger create {LEDGER} --epsilon 9 --delta 1e-4",
        "panel train ../private.csv --target rich --classes no,yes --teachers 9 "
        f"--public ../public.csv --panel ../panel --ledger {LEDGER}",
        "panel show ../panel",
        f"ledger verify {LEDGER.split()[0]}",
        "token create --scope analyst --dataset d",
    ],
}


@pytest.fixture(scope="module", autouse=True)
def learner(place: Path, surroundings: dict[str, str]) -> Iterator[None]:
    """A learner of unknown code, where Python finds it."""
    library = place / "library"
    library.mkdir()
    (library / "shadow_learner.py").write_text(
        "from sklearn.tree import DecisionTreeClassifier\n"
        "class Own(DecisionTreeClassifier):\n    pass\n"
    )
    surroundings["PYTHONPATH"] = str(library)
    return


@pytest.mark.parametrize("name", COMMANDS)
def test_no_module_of_a_strangers_folder_is_run(
    name: str, place: Path, surroundings: dict[str, str]
) -> None:
    for arguments in COMMANDS[name]:
        done: Any = subprocess.run(
            [COMMAND, *arguments.split()],
            cwd=place / "stranger",
            env=surroundings,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not (place / "mark").exists(), (arguments, (place / "mark").read_text())
        assert done.returncode == 0, (arguments, done.stderr)


def test_a_server_finds_no_module_in_its_folder(
    place: Path, surroundings: dict[str, str]
) -> None:
    with subprocess.Popen(
        [COMMAND, *["serve", "--model", "../model", "--port", "0", "--workers", "2"]],
        cwd=place / "stranger",
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        assert server.stdout is not None
        lines = [server.stdout.readline()]
        while lines[-1] and "http://" not in lines[-1]:
            lines.append(server.stdout.readline())
        server.terminate()
        lines += server.stdout.readlines()
    assert not (place / "mark").exists(), (place / "mark").read_text()
    assert any("http://" in line for line in lines), lines


def test_a_worker_of_a_script_finds_no_module_in_its_folder(
    place: Path, surroundings: dict[str, str]
) -> None:
    """Of a script elsewhere, which starts workers and unknown code."""
    script = place / "script.py"
    script.write_text(
        "import json, pandas as pd, mapl, shadow_learner\n"
        "P, U = (pd.read_csv(f'../{n}.csv') for n in ('private', 'public'))\n"
        "model = mapl.PrivateClassifier(shadow_learner.Own(), classes=['no', 'yes'],\n"
        "    n_teachers=4, n_jobs=2)\n"
        "U = U[['age']]\n"
        "model.fit(P[['age']], P['rich'], X_public=U)\n"
        "model.fit_files('../private.csv', target='rich', X_public=U)\n"
        "mapl.load('../model').predict(P)\n"
        "print(json.dumps('done'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script],
        cwd=place / "stranger",
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not (place / "mark").exists(), (place / "mark").read_text()
    assert json.loads(done.stdout or '"nothing"') == "done", done.stderr
