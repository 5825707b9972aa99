"""Records in parts: the same integers as in memory, on any number of workers."""

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
from click.testing import CliRunner
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression

from commands import with_overlap
from mapl import BudgetExceededError, Ledger, PrivateClassifier
from mapl.cli import main
from mapl.engines.local import LocalEngine
from mapl.errors import ParameterError
from mapl.privacy import moments, noisy_counts, soft_dissent
from mapl.progress import Progress
from mapl.records import sources
from mapl.records.schema import Schema
from mapl.records.sources import Query, Source
from mapl.release.sums import Summer
from mapl.scale import records as streamed
from mapl.scale.limits import batch_rows, bytes_of
from mapl.scale.spool import Spool
from mapl.scale.sums import ContributionForm, StreamedContributions

N, COLUMNS = 3000, ["a", "b", "c", "day"]
DICTIONARY = {
    "columns": {
        "a": {"kind": "number", "range": [-5, 5]},
        "b": {"kind": "integer", "range": [0, 5]},
        "c": {"kind": "category", "categories": ["x", "y", "z"]},
        "day": {"kind": "time", "range": ["2020-01-01", "2021-01-01"]},
    }
}


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 300, N), "D")
    found = pd.DataFrame(
        {
            "a": rng.normal(size=N),
            "b": rng.integers(0, 5, N),
            "c": rng.choice(["x", "y", "z", None], N),
            "day": day,
            "who": rng.integers(0, 900, N),
        }
    )
    found.loc[rng.random(N) < 0.05, "a"] = np.nan
    signal = found["a"].fillna(0) + (found["c"] == "x") + rng.normal(size=N) / 2
    found["y"] = (signal > 0).astype(int)
    return pd.concat([found, found[:400], found[:50]], ignore_index=True)  # copies


DATA = frame()
POOL = DATA[COLUMNS].sample(1200, random_state=1).reset_index(drop=True)
FEW = POOL[["a", "b", "c"]]  # which every learner takes


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sources, "_PART_ROWS", 500)
    folder = tmp_path / "data"
    folder.mkdir()
    for i, start in enumerate(range(0, len(DATA), 1200)):
        part = DATA[start : start + 1200]
        part.to_parquet(folder / f"{i}.parquet", row_group_size=250, index=False)
    return f"{folder}/*.parquet"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of zero: what is published is a function of the records."""

    def zeros(_: Any, shape: Any = (), **__: Any) -> Any:
        return np.zeros(shape, dtype=np.int64)

    for module in (moments, noisy_counts, soft_dissent):
        monkeypatch.setattr(module, "discrete_gaussian", zeros)


def classifier(estimator: Any = None, **kwargs: Any) -> PrivateClassifier:
    return PrivateClassifier(estimator, classes=[0, 1], random_state=0, **kwargs)


def learner() -> Any:
    return Schema.of(FEW).encoding_pipeline(LogisticRegression())


def in_memory(model: PrivateClassifier, groups: str | None, pool: Any) -> Any:
    owners = None if groups is None else DATA[groups]
    columns = COLUMNS if pool is None else list(pool)
    return clone(model).fit(
        DATA[columns], DATA["y"], X_public=pool, allow_overlap=True, groups=owners
    )


CASES = {
    "moments": {},
    "votes": {"estimator": learner(), "method": "votes", "n_teachers": 12},
    "both": {"estimator": learner(), "n_teachers": 12},
    "votes within a time": {
        "estimator": DummyClassifier(strategy="prior"),
        "method": "votes",
        "n_teachers": 6,
        "time_limit": 60,
    },
    "schema": {"schema": DICTIONARY},
    "schema and votes": {
        "schema": DICTIONARY,
        "estimator": DummyClassifier(strategy="prior"),
        "n_teachers": 6,
    },
}


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("groups", [None, "who"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_published_is_the_same_bit_by_bit(
    case: str, groups: str | None, files: str
) -> None:
    model = classifier(**CASES[case])
    pool = None if "schema" in case else POOL if case == "moments" else FEW
    expected = in_memory(model, groups, pool)
    found = clone(model).set_params(memory="60MB")
    found.fit_files(files, target="y", groups=groups, X_public=pool, allow_overlap=True)
    np.testing.assert_array_equal(found.soft_labels_, expected.soft_labels_)
    assert found.certificate_["unit"] == expected.certificate_["unit"]
    assert found.events_ == expected.events_


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("workers", [3])
def test_workers_and_sizes_of_batches_change_nothing(
    workers: int, files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = in_memory(classifier(learner(), n_teachers=12), None, FEW)
    monkeypatch.setattr(
        "mapl.streaming.batch_rows", lambda *_, **__: 100 + 37 * workers
    )
    engine = KillsSome(workers)
    found = classifier(learner(), n_teachers=12, engine=engine)
    found.fit_files(files, target="y", X_public=FEW, allow_overlap=True)
    np.testing.assert_array_equal(found.soft_labels_, expected.soft_labels_)
    assert engine.killed > 1


class KillsSome(LocalEngine):
    """Kills a worker now and then, as a full machine would."""

    killed = 0

    def _give_out(self, *args: Any) -> None:
        super()._give_out(*args)
        if self._calls % 4 == 1 and self.killed < self._calls:
            self._workers[0].process.kill()
            self.killed += 1


@pytest.mark.usefixtures("silent")
def test_csv_and_queries_are_the_same_records(files: str, tmp_path: Path) -> None:
    import sqlite3
    from contextlib import closing

    del files
    plain = DATA[["a", "b", "c", "who", "y"]]
    plain.to_csv(tmp_path / "x.csv", index=False)
    with closing(sqlite3.connect(tmp_path / "x.db")) as database:
        plain.to_sql("t", database, index=False)
    shown = [
        classifier().fit_files(
            given, target="y", groups=groups, X_public=FEW, allow_overlap=True
        )
        for groups in (None, "who")
        for given in (
            tmp_path / "x.csv",
            Query(f"sqlite:///{tmp_path}/x.db", "SELECT * FROM t"),
        )
    ]
    for csv, query in (shown[:2], shown[2:]):
        np.testing.assert_array_equal(csv.soft_labels_, query.soft_labels_)


def test_records_without_a_label_are_left_out(tmp_path: Path) -> None:
    odd = DATA.assign(y=DATA["y"].astype(object), who=DATA["who"].astype(object))
    odd.loc[:99, "y"], odd.loc[200:299, "who"] = None, None
    odd.to_parquet(tmp_path / "x.parquet", index=False)
    model = classifier()
    records, *_ = read(model, tmp_path / "x.parquet", groups="who")
    assert records._n == len(odd) - 100
    records.close()


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("case", ["moments", "votes", "schema"])
def test_missing_owners_and_labels_count_alike_in_files_and_in_memory(
    case: str, tmp_path: Path
) -> None:
    odd = DATA.assign(y=DATA["y"].astype(object), who=DATA["who"].astype(object))
    odd = pd.concat([odd, odd[:50], odd[:50]], ignore_index=True)  # copies, too
    rng = np.random.default_rng(0)
    odd.loc[rng.random(len(odd)) < 0.1, "y"] = None
    odd.loc[rng.random(len(odd)) < 0.3, "who"] = None
    odd.loc[rng.random(len(odd)) < 0.1, "who"] = "nan"
    odd["who"] = odd["who"].astype(str).replace({"None": None})
    odd.to_parquet(tmp_path / "x.parquet", index=False)
    given: dict[str, Any] = {} if case == "schema" else {"X_public": FEW}
    models = [classifier(**CASES[case], on_invalid="drop") for _ in range(2)]
    X = odd[COLUMNS if case == "schema" else list(FEW)]
    models[0].fit(X, odd["y"], groups=odd["who"], **given)
    models[1].fit_files(tmp_path / "x.parquet", target="y", groups="who", **given)
    np.testing.assert_array_equal(*(model.soft_labels_ for model in models))


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_file_that_changes_between_two_passes_is_noticed(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its size and its time are the same as before."""
    path = tmp_path / f"x.{ending}"
    first = DATA[["a", "b", "c", "y"]].assign(a=1.5)
    table_writer(path)(first)
    before, changed = path.stat(), path.with_suffix(".other")
    table_writer(changed, ending)(first.assign(a=2.5))
    assert changed.stat().st_size == before.st_size
    ask = Summer.gradient

    def change_first(self: Any, question: Any) -> Any:
        path.write_bytes(changed.read_bytes())
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return ask(self, question)

    monkeypatch.setattr(Summer, "gradient", change_first)
    model = classifier(method="moments")
    with pytest.raises(ParameterError, match="changed during the fit"):
        model.fit_files(
            path, target="y", X_public=FEW[["a", "b", "c"]], allow_overlap=True
        )


def table_writer(path: Path, ending: str = "") -> Any:
    if (ending or path.suffix[1:]) == "csv":
        return lambda frame: frame.to_csv(path, index=False)
    return lambda frame: frame.to_parquet(path, index=False)


def read(model: PrivateClassifier, files: Any, groups: str | None = None) -> Any:
    model._begin(streamed=True)
    model._allow_overlap = True
    return model._read_files(files, target="y", groups=groups, X_public=FEW)


# What is refused --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "given", "message"),
    [
        ({"privacy": "labels"}, {}, "needs the records in memory"),
        ({"classes": None}, {}, "classes must be declared"),
        ({"memory": "a lot"}, {}, "memory must be a size"),
        ({"memory": "3MB"}, {}, "memory must be a size"),
        ({"engine": "spark"}, {}, "engine must be"),
        ({}, {"target": "z"}, "Column 'z' is not in"),
        ({}, {"groups": "z"}, "Column 'z' is not in"),
        ({}, {"X_public": POOL.to_numpy()[:, :1].astype(float)}, "X_public must be a"),
        ({"classes": [0, 7]}, {}, "y holds a label"),
        ({"spool": "/proc/nothing"}, {}, "cannot hold intermediate files"),
    ],
)
def test_what_cannot_be_is_refused(
    params: dict[str, Any], given: dict[str, Any], message: str, files: str
) -> None:
    model = classifier().set_params(**params)
    args: dict[str, Any] = {"target": "y", "X_public": POOL} | given
    with pytest.raises(ParameterError, match=message):
        model.fit_files(files, **args)


def test_a_bad_record_stops_a_fit_before_it_is_charged(
    files: str, tmp_path: Path, state: Path
) -> None:
    url = ledger(tmp_path)
    bad = DATA[:50].assign(y=7)
    bad.to_parquet(Path(files).parent / "9.parquet", index=False)
    model = classifier(ledger=url, dataset="d")
    with pytest.raises(ParameterError, match="y holds a label"):
        model.fit_files(files, target="y", X_public=POOL, allow_overlap=True)
    (Path(files).parent / "9.parquet").write_bytes(b"PAR1")
    with pytest.raises(ParameterError, match=r"9.parquet cannot be read"):
        model.fit_files(files, target="y", X_public=POOL, allow_overlap=True)
    assert Ledger(url).balance("d").epsilon_spent == 0
    assert list((state / "spool").iterdir()) == []
    (Path(files).parent / "9.parquet").unlink()
    lines = Path(files).parent / "x.csv"
    DATA[:100].to_csv(lines, index=False)
    lines.write_text(lines.read_text() + "1,2\n")
    with pytest.raises(ParameterError, match="line that cannot be read"):
        classifier().fit_files(lines, target="y", X_public=POOL, allow_overlap=True)
    dropped = classifier(on_invalid="drop")
    dropped.fit_files(lines, target="y", X_public=POOL, allow_overlap=True)
    nothing = DATA[:0]
    nothing.to_parquet(tmp_path / "0.parquet", index=False)
    with pytest.raises(ParameterError, match="nothing to learn from"):
        classifier().fit_files(
            tmp_path / "0.parquet", target="y", X_public=POOL, allow_overlap=True
        )
    again = classifier(learner(), n_teachers=5, on_invalid="drop")
    again.fit_files(
        tmp_path / "0.parquet",
        target="y",
        groups="who",
        X_public=FEW,
        allow_overlap=True,
    )


def ledger(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/budget.db"
    Ledger(url, create=True).create("d", epsilon=1.5, delta=1e-4)
    return url


def test_a_ledger_is_charged_once(files: str, tmp_path: Path) -> None:
    url = ledger(tmp_path)
    shown = []
    for _ in range(2):
        model = classifier(learner(), n_teachers=12, ledger=url, dataset="d")
        model.fit_files(
            files, target="y", groups="who", X_public=FEW, allow_overlap=True
        )
        shown.append(model)
    assert [model.paid_before_ for model in shown] == [False, True]
    np.testing.assert_array_equal(shown[0].soft_labels_, shown[1].soft_labels_)
    with pytest.raises(BudgetExceededError):
        classifier(epsilon=1.2, ledger=url, dataset="d").fit_files(
            files, target="y", X_public=FEW, allow_overlap=True
        )


KILLED = """
import os, signal, sys
import pandas as pd
from sklearn.linear_model import LogisticRegression
from mapl import PrivateClassifier
from mapl.records import sources
from mapl.records.schema import Schema
from mapl.scale import records

sources._PART_ROWS = 500
files, pool, url, after, teachers = sys.argv[1:]
pool = pd.read_parquet(pool)
done = [0]
save = records._Finished.save

def counted(self, i, result):
    save(self, i, result)
    done[0] += self._checkpoints is not None and (result[1].ndim > 1)
    if done[0] == int(after):
        os.kill(os.getpid(), signal.SIGKILL)

records._Finished.save = counted
learner = None
if int(teachers):
    learner = Schema.of(pool).encoding_pipeline(LogisticRegression())
model = PrivateClassifier(learner, classes=[0, 1], random_state=0, ledger=url,
    dataset="d", n_teachers=int(teachers) or "auto", memory="60MB")
model.fit_files(files, target="y", X_public=pool, allow_overlap=True)
"""


def kill_after(tasks: int, files: str, folder: Path, teachers: int = 0) -> str:
    """Run a fit, and kill it when so many tasks are finished; return its ledger."""
    url, pool = ledger(folder), folder / "pool.parquet"
    FEW.to_parquet(pool)
    arguments = [files, str(pool), url, str(tasks), str(teachers)]
    command = [sys.executable, "-c", KILLED, *arguments]
    done = subprocess.run(command, env=os.environ, check=False, capture_output=True)
    assert done.returncode == -9, done.stderr.decode()
    return url


@pytest.mark.usefixtures("silent")
def test_other_parts_do_not_take_the_results_of_a_killed_fit(
    files: str, tmp_path: Path
) -> None:
    """The same records in files of other names: each counts once."""
    expected = classifier().fit_files(
        files, target="y", X_public=FEW, allow_overlap=True
    )
    url = kill_after(2, files, tmp_path)
    (Path(files).parent / "0.parquet").rename(Path(files).parent / "9.parquet")
    model = classifier(ledger=url, dataset="d")
    model.fit_files(files, target="y", X_public=FEW, allow_overlap=True)
    assert model.paid_before_
    np.testing.assert_array_equal(model.soft_labels_, expected.soft_labels_)


@pytest.mark.usefixtures("silent")
def test_other_buckets_do_not_take_the_votes_of_a_killed_fit(
    files: str, tmp_path: Path
) -> None:
    expected = classifier(learner(), n_teachers=12)
    expected.fit_files(files, target="y", X_public=FEW, allow_overlap=True)
    url = kill_after(2, files, tmp_path, teachers=12)
    model = classifier(learner(), n_teachers=12, ledger=url, dataset="d", n_jobs=3)
    model.fit_files(files, target="y", X_public=FEW, allow_overlap=True)
    np.testing.assert_array_equal(model.soft_labels_, expected.soft_labels_)


@pytest.mark.parametrize("groups", [None, "who"])
def test_one_unit_changes_one_chunk(
    groups: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours in files, with copies and gaps: the chunks are compared by content."""
    monkeypatch.setattr(sources, "_PART_ROWS", 100)
    some = pd.concat([DATA[:600], DATA[:40]])  # the first forty have a copy
    if groups is None:
        cases = [some, some.iloc[1:], some.iloc[:-1], some.drop(index=300)]
    else:
        cases = [some, *(some[some["who"] != some["who"].iloc[i]] for i in (3, 300))]
    contents = [chunk_contents(frame, tmp_path, groups) for frame in cases]
    for other in contents[1:]:
        changed = [a != b for a, b in zip(contents[0], other, strict=True)]
        assert sum(changed) == 1


def test_records_without_copies_stay_in_their_buckets(tmp_path: Path) -> None:
    found = chunk_contents(DATA[:300], tmp_path, None)
    assert sum(len(codes) for _, codes in found) == 300


def chunk_contents(frame: pd.DataFrame, folder: Path, groups: str | None) -> Any:
    frame.to_parquet(folder / "x.parquet", index=False, row_group_size=64)
    model = classifier(learner(), n_teachers=12)
    records, *_ = read(model, folder / "x.parquet", groups=groups)
    records.partition(12, salt=5)
    found = []
    for bucket in records.buckets:
        own, rows = bucket.records(records.reading.schema, grouped=groups is not None)
        for chunk in rows[bucket.first : bucket.last]:
            cells = own.table.take(chunk).data.to_json()
            found.append((cells, own.codes[chunk].tolist()))
    records.close()
    return found


def test_a_killed_fit_goes_on_from_its_last_finished_task(
    files: str, tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = kill_after(12, files, tmp_path)
    assert len(list((state / "spool").iterdir())) == 1  # what it left behind
    reused = [0]
    load = streamed._Finished.load

    def counted(self: Any, i: int) -> Any:
        found = load(self, i)
        reused[0] += found is not None
        return found

    monkeypatch.setattr(streamed._Finished, "load", counted)
    model = classifier(ledger=url, dataset="d")
    model.fit_files(files, target="y", X_public=FEW, allow_overlap=True)
    assert model.paid_before_
    assert reused[0] > 0
    assert list((state / "spool").iterdir()) == []
    assert not list((state / "teachers").glob("*/*"))


# The spool --------------------------------------------------------------------------


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    made = Spool(tmp_path / "spool")
    yield made
    made.close()


def test_a_spool_is_encrypted_private_and_removed(
    files: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    close = Spool.close

    def looked(self: Spool) -> None:
        assert self.path.stat().st_mode & 0o777 == 0o700
        for path in self.path.iterdir():
            assert path.stat().st_mode & 0o777 == 0o600
            seen.append(path.read_bytes())
        close(self)

    monkeypatch.setattr(Spool, "close", looked)
    secret = "Llanfairpwllgwyngyll"
    private = DATA.assign(c=secret)
    private.to_parquet(tmp_path / "x.parquet", index=False)
    pool = FEW.assign(c=[secret, "x", "y"] * 400)
    model = classifier(learner(), n_teachers=4, spool=tmp_path / "own")
    model.fit_files(
        tmp_path / "x.parquet", target="y", X_public=pool, allow_overlap=True
    )
    assert sum(map(len, seen)) > 10_000
    assert not any(secret.encode() in data for data in seen)
    assert list((tmp_path / "own").iterdir()) == []


def test_a_damaged_frame_stops_the_fit(files: str, tmp_path: Path) -> None:
    model = classifier(learner(), n_teachers=4, spool=tmp_path / "own")
    records, *_ = read(model, files)
    records.partition(4, salt=0)
    (file, *_) = (p for p in records._spool.path.iterdir() if p.name != "in-use")
    data = bytearray(file.read_bytes())
    data[50] ^= 1
    file.write_bytes(data)
    schema = records.reading.schema
    with pytest.raises(ParameterError, match="damaged"):
        [b.records(schema, grouped=False) for b in records.buckets]
    records.close()
    assert repr(records) == "StreamedRecords()"
    assert repr(records._spool) == "Spool()"


def test_a_spool_in_use_is_left_alone(spool: Spool, tmp_path: Path) -> None:
    (spool.path.parent / "mapl-spool-odd").mkdir()
    other = Spool(tmp_path / "spool")
    assert spool.path.exists()
    other.close()


# Sizes and progress -----------------------------------------------------------------


def test_sizes_are_read_as_people_write_them() -> None:
    assert bytes_of("500MB") == 500_000_000
    assert bytes_of("2 GB") == bytes_of("2g") == 2 * 10**9
    assert bytes_of(10**8) == 10**8
    assert batch_rows(10**12, n_columns=5, n_workers=1) == 2**16
    assert batch_rows(5 * 10**7, n_columns=5000, n_workers=8) == 2**10


def test_work_inside_other_work_has_a_line_below_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mapl.progress.QUIET_SECONDS", -1.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress("Steps", 2) as steps:
        steps.advance(1)
        with Progress("Reading", 3) as parts:
            parts.advance(1, rows=1000)
            assert parts.bar is steps.bar
            (_, own) = steps.bar.tasks
            assert "records a second" in own.description
        assert len(steps.bar.tasks) == 1
    assert Progress._shown is None


def test_shared_features_are_noticed(files: str) -> None:
    other = POOL.assign(a=np.random.default_rng(5).normal(size=len(POOL)))
    one = pd.concat([other, POOL[:1]], ignore_index=True)
    for estimator in (None, learner()):
        model = classifier(estimator, n_teachers=4)
        columns = COLUMNS if estimator is None else list(FEW)
        for shared in (POOL, one):
            with pytest.raises(ParameterError, match="that are private records, too"):
                model.fit_files(files, target="y", X_public=shared[columns])
            with pytest.raises(ParameterError, match="that are private records, too"):
                model.fit(DATA[columns], DATA["y"], X_public=shared[columns])
        assert not hasattr(model, "certificate_")
    model.fit_files(files, target="y", X_public=other[list(FEW)])
    assert "X_public" in model.certificate_["public"]["assumed"]
    assert "allow_overlap" not in model.certificate_["public"]["assumed"]
    model.fit_files(files, target="y", X_public=FEW, allow_overlap=True)
    assert "features of those people" in model.certificate_["public"]["assumed"]


def test_a_learner_that_cannot_read_gaps_is_told_so(files: str) -> None:
    plain = classifier(LogisticRegression(), n_teachers=4)
    with pytest.raises(ParameterError, match="takes no missing values"):
        plain.fit_files(
            files, target="y", X_public=FEW[["a", "b"]].fillna(0.0), allow_overlap=True
        )
    assert str(Source.of(files)) == files


# From the shell ---------------------------------------------------------------------


def run(*args: Any, code: int = 0) -> Any:
    args = with_overlap(args)
    done = CliRunner().invoke(main, [str(arg) for arg in args])
    assert done.exit_code == code, done.output + done.stderr
    return done


@pytest.fixture
def shell(files: str, tmp_path: Path) -> dict[str, Any]:
    fresh = np.random.default_rng(9).normal(size=len(FEW))
    FEW.assign(a=fresh).to_csv(tmp_path / "public.csv", index=False)
    DATA[:500].to_csv(tmp_path / "test.csv", index=False)
    common = ("--target", "y", "--classes", "0,1", "--epsilon", 2, "--drop", "who")
    public = ("--public", tmp_path / "public.csv", "--test", tmp_path / "test.csv")
    return {"files": files, "common": (*common, *public, "--json"), "path": tmp_path}


def test_files_are_learned_from_in_parts(shell: dict[str, Any]) -> None:
    files, common, path = shell["files"], shell["common"], shell["path"]
    memory = ("--engine", "local", "--memory", "100MB", "--spool", path / "spool")
    done = run("learn", files, *common, *memory, "--out", path / "out")
    assert json.loads(done.stdout)["accuracy"] > 0.7
    run("certificate", "verify", path / "out")
    teachers = ("--estimator", "bayes", "--teachers", 5)
    run("learn", files, *common, *memory, *teachers, "--out", path / "both")
    out = ("--out", path / "no")
    message = run("learn", f"{files}x", *common, *out, code=2).stderr
    assert "There is no file" in message
    message = run("learn", files, *common, *out, "--address", "auto", code=2).stderr
    assert "--address goes with --engine ray" in message
    message = run("learn", files, *common, *out, "--baseline", code=2).stderr
    assert "read at once" in message
    pool = Path(files).parent / "0.parquet"
    args = ("--target", "y", "--classes", "0,1", "--epsilon", 1, "--public", pool)
    message = run("learn", files, *args, *out, code=2).stderr
    assert "--public is the private file itself" in message
    assert not (path / "no").exists()


def test_a_database_and_a_cluster_are_learned_from(
    shell: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3
    from contextlib import closing

    common, path = shell["common"], shell["path"]
    with closing(sqlite3.connect(path / "x.db")) as database:
        DATA[["a", "b", "c", "who", "y"]].to_sql("t", database, index=False)
    url, query = f"sqlite:///{path}/x.db", ("--query", "SELECT * FROM t")
    run("learn", url, *query, *common, "--out", path / "sql")
    asked: list[Any] = []

    def cluster(*, address: str) -> LocalEngine:
        asked.append(address)
        return LocalEngine(1)

    monkeypatch.setattr("mapl.engines.on_ray.RayEngine", cluster)
    ray = ("--engine", "ray", "--address", "auto")
    run("learn", shell["files"], *ray, *common, "--out", path / "ray")
    assert asked == ["auto"]


def test_classes_and_owners_may_come_from_a_schema(files: str) -> None:
    schema = DICTIONARY | {
        "target": {"column": "y", "classes": [0, 1]},
        "unit": {"column": "who"},
    }
    model = PrivateClassifier(schema=schema, random_state=0)
    model.fit_files(files, target="y")
    assert model.certificate_["unit"].startswith("all records of one")


def test_without_file_locks_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mapl.scale.spool.fcntl", None)
    first = Spool(tmp_path)
    second = Spool(tmp_path)
    assert first.path.exists()
    first.close()
    second.close()


def test_nothing_private_is_in_a_repr(files: str) -> None:
    records, *_ = read(classifier(), files)
    made = StreamedContributions(records, ContributionForm(None, None, 128))
    assert repr(made) == "StreamedContributions()"
    records.close()
