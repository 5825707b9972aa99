"""Records beyond memory: what a pass, a partition and a whole fit cost, in one run.

    python benchmarks/bench_scale.py [--rows N,...] [--parts PART,...] [--folder DIR]

Parts:
    step       one step of moments, linear and bins (a data dictionary), and one with
               public points (waves), against decoding the same Parquet with pyarrow;
               CPU seconds of one process each
    partition  sorting all records into encrypted buckets by record, against pyarrow's
               decode and encode; CPU seconds of one process each
    memory     whole fits by `mapl learn --memory 500MB` for each number of rows: peak
               of the largest process, and seconds
    same       votes and moments in memory, on 1 to 8 tasks, on Ray, and with killed
               workers, noise replaced by zeros: equal bit by bit or not

Records are made up: 20 columns (15 floats, 3 integers, 2 categories), files of 10^6.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from mapl import PrivateClassifier
from mapl.engines.local import LocalEngine
from mapl.scale import sums

FILE_ROWS, GROUP_ROWS = 1_000_000, 100_000
SIZES = "2000000,20000000"


def table(n: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {f"x{i}": rng.normal(size=n) for i in range(15)}
    columns |= {f"n{i}": rng.integers(0, 1000, n) for i in range(3)}
    columns |= {f"c{i}": rng.choice(["a", "b", "c", "d"], n) for i in range(2)}
    signal = columns["x0"] + columns["x1"] * columns["x2"] + (columns["c0"] == "a")
    columns["y"] = (signal + rng.normal(size=n) > 0).astype(np.int64)
    return pa.table(columns)


def make_files(folder: Path, rows: int) -> str:
    """Write files of made-up records, unless they are there."""
    own = folder / str(rows)
    own.mkdir(parents=True, exist_ok=True)
    for i, start in enumerate(range(0, rows, FILE_ROWS)):
        path = own / f"{i:04}.parquet"
        if not path.exists():
            part = table(min(FILE_ROWS, rows - start), i)
            pq.write_table(part, path, row_group_size=GROUP_ROWS)
    return f"{own}/*.parquet"


def schema() -> dict[str, Any]:
    numbers = {f"x{i}": {"kind": "number", "range": [-10, 10]} for i in range(15)}
    numbers |= {f"n{i}": {"kind": "integer", "range": [0, 1000]} for i in range(3)}
    listed = {"kind": "category", "categories": ["a", "b", "c", "d"]}
    return {"columns": numbers | {f"c{i}": listed for i in range(2)}}


def public() -> pd.DataFrame:
    return table(5000, 10**6).drop(["y"]).to_pandas()


class Timed(LocalEngine):
    """One process that notes the CPU seconds of each kind of task, and of each pass."""

    def __init__(self) -> None:
        super().__init__(1)
        self.seconds: dict[str, list[float]] = {}

    def map(self, work: Any, shared: Any, inputs: Any) -> Any:
        """Run tasks, and note how long they take."""
        name = work.__name__
        if work is sums._total:
            name = type(shared[2]).__name__
        begun = time.process_time()
        yield from super().map(work, shared, inputs)
        self.seconds.setdefault(name, []).append(time.process_time() - begun)


def fit(files: str, engine: Any, estimator: Any = None, **kwargs: Any) -> Any:
    model = PrivateClassifier(
        estimator, classes=[0, 1], random_state=0, engine=engine, **kwargs
    )
    given = None if kwargs.get("schema") else public()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit_files(files, target="y", X_public=given, allow_overlap=True)


def decoded(files: str, *, encoded: Path | None = None) -> float:
    """Return the CPU seconds that pyarrow takes to read all, and to write it again."""
    begun = time.process_time()
    for path in sorted(Path(files).parent.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for i, batch in enumerate(file.iter_batches(2**16, use_threads=False)):
                if encoded is not None:
                    pq.write_table(pa.Table.from_batches([batch]), encoded / f"{i}")
    return time.process_time() - begun


def step(folder: Path, rows: list[int]) -> list[dict[str, Any]]:
    found = []
    for name, kwargs, n in (
        ("linear and bins", {"schema": schema()}, rows[0]),
        ("with waves", {}, rows[0] // 10),
    ):
        files = make_files(folder, n)
        plain = min(decoded(files) for _ in range(2))
        engine = Timed()
        fit(files, engine, **kwargs)
        each = float(np.mean(engine.seconds["Gradient"]))
        found.append(
            {
                "features": name,
                "rows": n,
                "decode, CPU s": round(plain, 2),
                "step, CPU s": round(each, 2),
                "step over decode": round(each / plain, 1),
                "microseconds a row": round(1e6 * each / n, 2),
                "passes of a fit": sum(len(own) for own in engine.seconds.values()),
            }
        )
    return found


def partition(folder: Path, rows: list[int]) -> list[dict[str, Any]]:
    from sklearn.naive_bayes import GaussianNB

    from mapl.records.schema import Schema

    files = make_files(folder, rows[0])
    learner = Schema.of(public()).encoding_pipeline(GaussianNB())
    with tempfile.TemporaryDirectory(dir=folder) as other:
        plain = min(decoded(files, encoded=Path(other)) for _ in range(2))
    engine = Timed()
    fit(files, engine, learner, method="votes", n_teachers=64, memory="4GB")
    names = ("_sorted_into_buckets", "_moved")
    seconds = sum(sum(engine.seconds[name]) for name in names)
    return [
        {
            "rows": rows[0],
            "buckets": 64,
            "decode and encode, CPU s": round(plain, 2),
            "partition, CPU s": round(seconds, 2),
            "partition over decode and encode": round(seconds / plain, 2),
        }
    ]


def memory(folder: Path, rows: list[int]) -> list[dict[str, Any]]:
    (folder / "schema.json").write_text(json.dumps(schema()))
    found = []
    for n in rows:
        files = make_files(folder, n)
        with tempfile.TemporaryDirectory(dir=folder) as out:
            command = [
                *(sys.executable, "-c", _MEASURED, files),
                *("--schema", str(folder / "schema.json"), "--target", "y"),
                *("--classes", "0,1", "--epsilon", "1", "--engine", "local"),
                *("--memory", "500MB", "--jobs", "2", "--out", f"{out}/model"),
            ]
            begun = time.perf_counter()
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds = time.perf_counter() - begun
        peak = float(done.stdout.splitlines()[-1]) / 1024
        found.append(
            {
                "rows": n,
                "seconds": round(seconds, 1),
                "largest process, MB": round(peak),
            }
        )
    for before, after in pairwise(found):
        ratio = after["seconds"] / before["seconds"]
        after["times as long"] = round(ratio, 1)
    return found


_MEASURED = """
import resource, sys
from mapl.cli import main
try:
    main(["learn", *sys.argv[1:]], standalone_mode=False)
finally:
    both = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    print(max(resource.getrusage(who).ru_maxrss for who in both))
"""


def same(folder: Path, rows: list[int]) -> list[dict[str, Any]]:
    del rows
    from sklearn.linear_model import LogisticRegression

    from mapl.engines.on_ray import RayEngine
    from mapl.privacy import moments, soft_dissent
    from mapl.records.schema import Schema

    def zeros(_: Any, shape: Any = (), **__: Any) -> Any:
        return np.zeros(shape, dtype=np.int64)

    for module in (moments, soft_dissent):
        vars(module)["discrete_gaussian"] = zeros
    files = make_files(folder, 50_000)
    whole = table(50_000, 0).to_pandas()
    learner = Schema.of(public()).encoding_pipeline(LogisticRegression())
    plain = PrivateClassifier(learner, classes=[0, 1], n_teachers=20, random_state=0)
    expected = plain.fit(
        whole.drop(columns="y"), whole["y"], X_public=public(), allow_overlap=True
    )
    os.environ["RAY_AUTH_MODE"] = "disabled"
    engines: list[Any] = [
        *(LocalEngine(n) for n in (1, 2, 8)),
        Killing(2),
        RayEngine(n_workers=2),
    ]
    found = []
    for engine in engines:
        model = fit(files, engine, learner, n_teachers=20)
        equal = bool((model.soft_labels_ == expected.soft_labels_).all())
        name = f"{type(engine).__name__}, {engine.n_workers} workers"
        found.append({"engine": name, "same as in memory": equal})
    return found


class Killing(LocalEngine):
    """Kills a worker in every pass."""

    def _give_out(self, *args: Any) -> None:
        super()._give_out(*args)
        if getattr(self, "_killed", 0) < self._calls:
            self._workers[0].process.kill()
            self._killed = self._calls


PARTS = {"step": step, "partition": partition, "memory": memory, "same": same}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default=SIZES)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    rows = [int(n) for n in options.rows.split(",")]
    print({"rows": rows, "columns": 20, "rows a file": FILE_ROWS, "epsilon": 1})
    with tempfile.TemporaryDirectory(prefix="mapl-scale-") as temporary:
        folder = options.folder or Path(temporary)
        for name in options.parts.split(","):
            found = PARTS[name](folder, rows)
            print(name, *(f"  {row}" for row in found), sep="\n", flush=True)
    print({"peak of this process, MB": _own_peak()})


def _own_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
