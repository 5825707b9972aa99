"""Every block of Python and every command in the documents runs."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.M | re.S)
PAGES = [
    path
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    if "generated" not in path.parts and "_build" not in path.parts
]
WITH_CODE = [path for path in PAGES if BLOCK.search(path.read_text())]
BIN = Path(sys.executable).parent
SCHEMA = files("mapl.data") / "adult.schema.json"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the pages speak of: people, visits, and a published model."""
    folder = tmp_path_factory.mktemp("samples")
    with (files("mapl.data") / "adult.parquet").open("rb") as file:
        adult = pd.read_parquet(file).drop(columns="fnlwgt")
    adult = adult.sample(frac=1, random_state=0, ignore_index=True)
    # People who look alike would be public and private.
    adult = adult.drop_duplicates(adult.columns.drop("income"), ignore_index=True)
    without = adult.drop(columns="income")
    adult[:3000].to_csv(folder / "private.csv", index=False)
    adult[3000:4000].to_csv(folder / "test.csv", index=False)
    adult[4000:4200].to_csv(folder / "sample.csv", index=False)
    adult[4000:9000].to_csv(folder / "public_labelled.csv", index=False)
    without[9000:10_500].to_csv(folder / "public.csv", index=False)
    without[10_500:10_600].to_csv(folder / "new.csv", index=False)
    (folder / "schema.json").write_text(SCHEMA.read_text())
    (folder / "data").mkdir()
    for i in range(3):
        adult[1000 * i : 1000 * (i + 1)].to_parquet(folder / f"data/{i}.parquet")
    rng = np.random.default_rng(0)
    visits = pd.DataFrame({"age": rng.integers(20, 90, 9000)})
    visits["town"] = rng.choice(["York", "Bath"], 9000)
    ill = (visits["age"] > 55) & (visits["town"] == "York")
    visits["diagnosis"] = np.where(ill, "yes", "no")
    visits[:8000].to_csv(folder / "visits.csv", index=False)
    visits[["age", "town"]][8000:].to_csv(folder / "pool.csv", index=False)
    visits[["age", "town"]][:50].to_csv(folder / "new-visits.csv", index=False)
    learn = "mapl learn private.csv --schema schema.json --epsilon 1 --delta 1e-6"
    budget = "--ledger sqlite:///budget.db --dataset people"
    shell(f"{learn} --out model; cp -r model published", folder, folder)
    shell(
        "mapl ledger create sqlite:///budget.db --dataset people --epsilon 3 "
        f"--delta 3e-6; {learn} {budget} --out charged",
        folder,
        folder,
    )
    return folder


def shell(commands: str, folder: Path, state: Path) -> subprocess.Popen[str]:
    """Run commands as a reader would; the first that fails ends it."""
    env = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "MPLBACKEND": "agg"}
    env |= {"MAPL_STATE": str(state / "state"), "NO_COLOR": "1"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
    return done  # type: ignore[return-value]


@contextmanager
def served(command: str, folder: Path) -> Iterator[None]:
    """Run a server in the background, until it is asked for nothing more."""
    env = os.environ | {"MAPL_STATE": str(folder / "state")}
    words = command.split()
    process = subprocess.Popen(
        [BIN / words[0], *words[1:]], cwd=folder, env=env, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen("http://localhost:8000/v2/health/ready")
                break
            except OSError:
                assert process.poll() is None
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(20)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return kind and text of the blocks of a page that run."""
    return BLOCK.findall(page.read_text())


# What a page makes itself.
MADE_BY = {
    "README.md": ("schema.json", "model", "charged", "budget.db"),
    "ledger.md": ("budget.db",),
    "panels.md": ("budget.db",),
    "serve.md": ("budget.db",),
}


def run_page(page: Path, folder: Path) -> None:
    """Run the blocks of a page in their order, in one folder."""
    own: dict[str, Any] = {"__name__": "page"}
    server = None
    for kind, code in blocks(page):
        if kind == "python":
            exec(compile(code, str(page), "exec"), own)
        elif code.startswith("mapl serve"):
            server = served(code.strip(), folder)
            server.__enter__()
        else:
            shell(code, folder, folder)
    if server is not None:
        server.__exit__(None, None, None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_what_a_page_shows_runs(
    page: Path, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    if page.name == "start.md":  # which begins with nothing
        folder.mkdir()
    else:
        shutil.copytree(samples, folder)
    for name in MADE_BY.get(page.name, ()):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if page.name == "serve.md":  # of a panel that is open
        panel = blocks(ROOT / "docs" / "panels.md")[0][1]
        opened = panel.replace("mapl panel close panels/one", "")
        assert opened != panel
        shell(opened, folder, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MAPL_STATE", str(folder / "state"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    run_page(page, folder)


def test_nothing_looks_like_code_and_does_not_run() -> None:
    """Blocks are marked: python and sh run; text, console and the like do not."""
    assert len(WITH_CODE) > 15
    for page in PAGES:
        if "proofs" in page.parts or page.name in ("cli.md", "decisions.md"):
            continue
        for line in page.read_text().splitlines():
            indented = re.match(r"    (mapl|import|from|>>>|make|pip) ", line)
            assert not indented, f"{name_of(page)}: {line}"


def test_the_notebook_is_the_first_example_with_its_output() -> None:
    """The site runs that example; a host shows the notebook as it is."""
    notebook = json.loads((ROOT / "examples/first_model.ipynb").read_text())
    example = (ROOT / "examples/gallery/plot_1_first_model.py").read_text()
    kinds = set()
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            assert source in example
            compile(source, "cell", "exec")
            assert cell["execution_count"]
            for output in cell["outputs"]:
                kinds |= set(output.get("data", {"text": ""}))
    assert {"image/png", "text"} <= kinds
