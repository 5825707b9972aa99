"""A teacher gets copies and leaves votes, and nothing else."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import odd_learners as odd
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, ShuffleSplit
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier

from mapl import PrivateClassifier
from mapl.errors import MaplError, ParameterError
from mapl.privacy.soft_dissent import GRID
from mapl.privacy.votes import NO_VOTE
from mapl.teachers import isolation, voting
from mapl.teachers.isolation import PublicPart, Task, TeacherServer
from mapl.teachers.known import is_known, silent_clone
from mapl.teachers.silence import seed_everything, teacher_surroundings
from mapl.teachers.voting import Chunks, collect_votes, votes_on_own_points


def chunks(n: int = 8, size: int = 6, first: Any = None) -> Chunks:
    """Chunks whose first feature, in all records, is theirs alone."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n * size, 3))
    given = np.zeros(n) if first is None else np.asarray(first, dtype=float)
    X[:, 0] = np.repeat(given, size)
    codes = np.tile([0, 1], n * size // 2)
    rows = [np.arange(j * size, (j + 1) * size) for j in range(n)]
    return Chunks(
        X, codes, rows, np.arange(2 * n * size, dtype=np.uint64).reshape(-1, 2)
    )


POINTS = np.zeros((5, 3))


def votes_of(learner: Any, data: Chunks, points: Any = POINTS, **kwargs: Any) -> Any:
    options: dict[str, Any] = {"labels": np.array([0, 1]), "random_state": 0}
    return collect_votes(learner, data, points, **options | kwargs)


def first_votes(learner: Any, data: Chunks, **kwargs: Any) -> list[int]:
    return [int(row[0]) for row in votes_of(learner, data, **kwargs)]


@pytest.mark.parametrize("learner", [odd.Counts(), odd.UsesEnvironment()])
def test_no_state_passes_from_teacher_to_teacher_or_fit_to_fit(learner: Any) -> None:
    for n_jobs in (1, 2, 1):
        assert first_votes(learner, chunks(), n_jobs=n_jobs) == [1] * 8
    assert odd.Counts.fits == 0
    assert "FITS" not in os.environ


def test_global_generators_are_seeded_by_the_teachers_number() -> None:
    learner = odd.UsesGlobalGenerators()
    once = first_votes(learner, chunks())
    assert first_votes(learner, chunks(), n_jobs=2) == once
    assert first_votes(learner, chunks(n=4)) == once[:4]
    assert len(set(once)) == 2


def test_what_a_teacher_prints_stays_there(capfd: pytest.CaptureFixture[str]) -> None:
    assert first_votes(odd.Prints(), chunks(2)) == [1, 1]
    assert first_votes(LogisticRegression(verbose=3), chunks(2)) != []
    search = GridSearchCV(DecisionTreeClassifier(), {"max_depth": [1]}, cv=2, verbose=4)
    first_votes(search, chunks(2))
    assert "".join(capfd.readouterr()) == ""


def test_a_teacher_that_ends_its_process_has_no_vote_and_no_other_notices() -> None:
    ways = range(8)
    expected = [NO_VOTE if 1 <= way <= 6 else 1 for way in ways]
    assert first_votes(odd.Dies(), chunks(first=ways)) == expected
    assert first_votes(odd.Dies(), chunks(first=ways), n_jobs=2) == expected


def test_a_teacher_that_hangs_is_ended_at_the_time_limit() -> None:
    start = time.monotonic()
    found = first_votes(odd.Hangs(), chunks(3, first=[0, 1, 0]), time_limit=1.5)
    assert found == [1, NO_VOTE, 1]
    assert time.monotonic() - start < 30


def test_a_time_limit_gives_known_learners_a_process_too() -> None:
    tree = DecisionTreeClassifier(random_state=0)
    usual = votes_of(tree, chunks())
    assert (votes_of(tree, chunks(), time_limit=60) == usual).all()


def test_no_file_or_process_of_a_teacher_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert first_votes(odd.LeavesFiles(), chunks(3)) == [1] * 3
    assert list(tmp_path.iterdir()) == []
    temporary = Path(tempfile.gettempdir())
    names = [name for _, _, files in os.walk(temporary) for name in files]
    assert not [name for name in names if name.endswith(".careless")]
    mine = f"{isolation._FOLDER}{os.getpid()}-*"
    assert not list(temporary.glob(mine))
    assert first_votes(odd.LeavesProcesses(), chunks(3)) == [1] * 3
    listed = subprocess.run(["ps", "-ef"], capture_output=True, text=True, check=False)
    assert "teachers.isolation" not in listed.stdout


def test_no_teacher_remembers_through_a_file() -> None:
    assert first_votes(odd.UsesOpenFiles(), chunks(4)) == [0] * 4


def test_a_cache_of_a_pipeline_is_not_used(tmp_path: Path) -> None:
    pipeline = make_pipeline(
        StandardScaler(), LogisticRegression(), memory=str(tmp_path)
    )
    votes_of(pipeline, chunks())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "learner",
    [
        make_pipeline(StandardScaler(copy=False), KNeighborsClassifier(1)),
        odd.WritesIntoPoints(),
    ],
)
@pytest.mark.parametrize("kind", [np.asarray, pd.DataFrame])
def test_a_teacher_cannot_write_into_the_public_points(learner: Any, kind: Any) -> None:
    rng = np.random.default_rng(0)
    X, points = rng.normal(size=(80, 3)), kind(rng.normal(size=(60, 3)))
    before = np.array(points, copy=True)
    model = PrivateClassifier(
        learner,
        student=LogisticRegression(),
        epsilon=50,
        n_teachers=5,
        classes=[0, 1],
        random_state=0,
    )
    model.fit(kind(X), (X[:, 0] > 0).astype(int), X_public=points)
    np.testing.assert_array_equal(np.asarray(points), before)
    np.testing.assert_array_equal(np.asarray(X), X)


def test_only_votes_come_out_of_a_process() -> None:
    found = votes_of(odd.AnswersNonsense(), chunks(2))
    assert (found == NO_VOTE).all()
    shape = (2, 3)
    bad = np.array([[0, 1, -1], [0, 7, 1]], dtype="<i4").tobytes()
    checked = isolation._checked(bad, shape, 2)
    assert checked is not None
    assert checked.tolist() == [[0, 1, -1], [NO_VOTE] * 3]
    for wrong in (None, b"", bad[:-1], bad + b"x"):
        assert isolation._checked(wrong, shape, 2) is None


def test_a_learner_that_cannot_be_sent_is_refused_before_anything() -> None:
    with pytest.raises(ParameterError, match="cannot be sent to a process of its own"):
        votes_of(odd.CannotBeSent(threading.Lock()), chunks(2))


class BreaksOnLoading(odd.Careless):
    def __setstate__(self, state: Any) -> None:
        raise RuntimeError("cannot be loaded here")


def test_a_learner_that_cannot_be_loaded_is_refused_before_anything() -> None:
    with pytest.raises(ParameterError, match=r"RuntimeError: cannot be loaded here\."):
        votes_of(BreaksOnLoading(), chunks(2))


def test_a_system_without_fork_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(ParameterError, match="needs Linux or macOS"):
        votes_of(odd.Counts(), chunks(2))


def test_workers_give_the_same_votes_and_one_that_dies_costs_its_own() -> None:
    data = chunks(9, first=range(9))
    search = GridSearchCV(DecisionTreeClassifier(), {"max_depth": [1, 3]}, cv=2)
    alone = votes_of(search, data)
    together = votes_of(search, data, n_jobs=2, seconds_each=10)
    assert (alone == together).all()

    class Flaky:
        """A server whose groups die: each teacher is then tried alone."""

        n_points = 5

        def votes(self, task: Task) -> Any:
            occupied = [i for i, (_, codes) in enumerate(task.chunks) if len(codes)]
            if len(occupied) > 1 or occupied == [2]:
                return None
            assert len(task.numbers) == 4  # the shape of a product stays the same
            return np.ones((4, 5), dtype=np.int32)

    silence = np.full((4, 5), NO_VOTE)
    server: Any = Flaky()
    rows = voting._votes_there(server, data, [0, 1, 2, 3], silence)
    assert rows[:, 0].tolist() == [1, 1, NO_VOTE, 1]


def test_empty_chunks_need_no_process() -> None:
    data = chunks(3)
    rows = [data.rows[0], data.rows[1][:0], data.rows[2]]
    empty = Chunks(data.features, data.codes, rows, data.keys)
    assert first_votes(odd.Careless(), empty)[1] == NO_VOTE
    nothing = Chunks(data.features, data.codes, [data.rows[0][:0]], data.keys)
    assert first_votes(odd.Careless(), nothing) == [NO_VOTE]


def test_teachers_can_be_asked_about_points_of_their_own() -> None:
    data = chunks(4)
    points = [data.rows[1], data.rows[0], data.rows[2][:0], data.rows[3]]
    for learner in (DecisionTreeClassifier(random_state=0), odd.Dies()):
        kwargs: Any = {"labels": np.array([0, 1]), "random_state": 0}
        found = votes_on_own_points(learner, data, points, **kwargs)
        lengths = [0 if one is None else len(one) for one in found]
        assert lengths == [6, 6, 0, 6]


def test_a_server_that_is_killed_stops_the_fit_and_leaves_nothing() -> None:
    public = PublicPart(odd.Careless(), POINTS, np.array([0, 1]), 0)
    with TeacherServer(public, n_points=5) as server:
        server._process.kill()
        server._process.wait()
        folder = Path(server._folder)
        with pytest.raises(MaplError, match="has ended"):
            server.votes(Task([0], [chunks(1).take(0)]))
    assert not folder.exists()


KILLED = """
import numpy as np, os, signal, sys
sys.path[:0] = {path!r}
import odd_learners
from mapl.teachers.isolation import PublicPart, TeacherServer
server = TeacherServer(
    PublicPart(odd_learners.Hangs(), np.zeros((5, 3)), np.array([0, 1]), 0), n_points=5
)
server.__enter__()
print(server._folder, server._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_stays_after_the_fit_is_killed() -> None:
    code = KILLED.format(path=[str(Path(__file__).parent), *sys.path])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    folder, process = done.stdout.split()
    wait_until(lambda: not Path(folder).exists())
    wait_until(lambda: not isolation._is_alive(int(process)))


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_folders_of_killed_fits_are_removed_at_the_next_start() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    temporary = Path(tempfile.gettempdir())
    stale = temporary / f"{isolation._FOLDER}{ended.pid}-x"
    stale.mkdir()
    (stale / "records").write_text("private")
    odd_name = temporary / f"{isolation._FOLDER}x-y"
    odd_name.mkdir(exist_ok=True)
    assert isolation.remove_stale_folders() >= 1
    assert not stale.exists()
    assert odd_name.exists()
    odd_name.rmdir()
    assert isolation._is_alive(1)


# Which learners may share a process ---------------------------------------------


class Own(LogisticRegression):
    pass


@pytest.mark.parametrize(
    ("learner", "known"),
    [
        (LogisticRegression(), True),
        (make_pipeline(StandardScaler(), RandomForestClassifier()), True),
        (GridSearchCV(LogisticRegression(), {"C": [0.1, np.float64(1)]}), True),
        (make_pipeline(FunctionTransformer(np.log1p), LogisticRegression()), True),
        (LogisticRegression(class_weight={0: 1, 1: 2}), True),
        (Own(), False),
        (GridSearchCV(Own(), {"C": [1]}), False),
        (GridSearchCV(LogisticRegression(), {"C": [1]}, cv=ShuffleSplit()), False),
        (make_pipeline(FunctionTransformer(lambda x: x), LogisticRegression()), False),
        (GridSearchCV(LogisticRegression(), {"C": [1]}, scoring=lambda *_: 1), False),
        (LogisticRegression(random_state=np.random.RandomState(0)), False),
        (LogisticRegression(C=np.array([None])), False),
        (FunctionTransformer(kw_args={"kind": np.float64}), True),
        (GridSearchCV(SVC(), {"verbose": [True]}), False),
        (GridSearchCV(SVC(), {"random_state": [None]}), False),
        (
            GridSearchCV(make_pipeline(SVC()), {"svc": [RandomForestClassifier()]}),
            False,
        ),
        (make_pipeline(FrozenEstimator(StandardScaler()), SVC()), False),
        (RandomForestClassifier, False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_scikit_learns_own_classes_with_plain_parameters_are_known(
    learner: Any, known: bool
) -> None:
    assert is_known(learner) == known


def test_clones_are_silent_and_keep_what_they_are_not() -> None:
    noisy = make_pipeline(
        StandardScaler(), RandomForestClassifier(verbose=2), memory="x"
    )
    quiet = silent_clone(noisy)
    assert (quiet.memory, quiet[-1].verbose) == (None, 0)
    assert noisy[-1].verbose == 2
    other = odd.CannotBeSent()
    assert silent_clone(other) is other

    class Plain:
        def get_params(self, deep: bool = True) -> dict[str, Any]:
            return {}

    assert not isinstance(Plain(), BaseEstimator)
    assert isinstance(silent_clone(Plain()), Plain)


def test_global_generators_are_left_as_they_were() -> None:
    """A known learner may use them: each teacher has them seeded, and no more."""
    np.random.seed(1)  # noqa: NPY002
    votes_of(make_pipeline(StandardScaler(), SVC(probability=False)), chunks(3))
    after = np.random.random()  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    assert np.random.random() == after  # noqa: NPY002


def test_two_fits_in_threads_leave_warnings_as_they_were() -> None:
    data = chunks(4)
    before = warnings.filters.copy()
    threads = [
        threading.Thread(target=votes_of, args=(DecisionTreeClassifier(), data))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before


# What may happen to processes ---------------------------------------------------


def test_a_learner_that_cannot_be_loaded_is_known_before_a_charge() -> None:
    isolation.check_loadable(odd.Careless())
    isolation.check_loadable(LogisticRegression())
    with pytest.raises(ParameterError, match="cannot be loaded here"):
        isolation.check_loadable(BreaksOnLoading())


def test_a_server_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    public = PublicPart(odd.Careless(), POINTS, np.array([0, 1]), 0)
    with TeacherServer(public, n_points=5) as server:
        wait, killed = server._process.wait, []

        def slow(timeout: float | None = None) -> int:
            if timeout is not None:
                raise subprocess.TimeoutExpired("server", timeout)
            return int(wait())

        monkeypatch.setattr(server._process, "wait", slow)
        monkeypatch.setattr(server._process, "kill", lambda: killed.append(1))
    assert killed


def test_a_child_that_is_gone_gives_no_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it says who it is, while it is sent its records, or in the middle."""
    public = PublicPart(odd.Careless(), POINTS, np.array([0, 1]), 0)
    task = Task([0], [chunks(1).take(0)])
    server = TeacherServer(public, n_points=5)
    mine, theirs = socket.socketpair()
    theirs.close()
    with mine:
        assert server._exchange(mine, task) is None
    mine, theirs = socket.socketpair()
    isolation._send(theirs, b"%d" % 2**22)  # no such process
    theirs.close()
    with mine:
        assert server._exchange(mine, task) is None

    class Reset:
        def recv(self, n: int) -> bytes:
            raise ConnectionResetError

    monkeypatch.setattr("select.select", lambda *_: ([1], [], []))
    assert isolation._read(Reset(), 3, None) is None  # type: ignore[arg-type]


def test_a_process_of_another_user_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    assert isolation._is_alive(1)


def test_surroundings_may_be_entered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    torch = SimpleNamespace(manual_seed=seeds.append)
    monkeypatch.setitem(sys.modules, "torch", torch)
    with teacher_surroundings(), teacher_surroundings():
        seed_everything(1, 2)
    assert len(seeds) == 1


# Probabilities ----------------------------------------------------------------------


@pytest.mark.parametrize("kwargs", [{}, {"n_jobs": 2, "seconds_each": 10}])
def test_teachers_answer_with_probabilities_of_their_own_chunk(kwargs: Any) -> None:
    data = chunks(6, first=range(6))
    tree, points = DecisionTreeClassifier(max_depth=1), np.arange(15.0).reshape(5, 3)
    found = votes_of(tree, data, points, soft=True, **kwargs)
    assert found.shape == (6, 5, 2)
    assert (found.sum(axis=2) == GRID).all()
    for j in range(6):
        alone = Chunks(data.features, data.codes, [data.rows[j]], data.keys)
        own = votes_of(tree, alone, points, soft=True)
        np.testing.assert_array_equal(own[0], found[j])


@pytest.mark.parametrize("n_classes", [2, 3])
def test_logistic_teachers_are_asked_together_and_say_the_same(n_classes: int) -> None:
    rng = np.random.default_rng(0)
    X, codes = rng.normal(size=(120, 3)), rng.integers(0, n_classes, 120)
    rows = [np.arange(j, 120, 4) for j in range(4)]
    rows += [np.flatnonzero(codes == 0), np.empty(0, dtype=np.int64)]
    data = Chunks(X, codes, rows, np.zeros((120, 1), dtype=np.uint64))
    points = rng.normal(size=(30, 3))
    args: dict[str, Any] = {"labels": np.arange(n_classes), "random_state": 0}
    for learner in (
        LogisticRegression(),
        make_pipeline(StandardScaler(), LogisticRegression()),
    ):
        found = voting.collect_votes(learner, data, points, soft=True, **args)
        teachers = voting.train(learner, X, codes, rows, **args)
        for teacher, own in zip(teachers, found, strict=True):
            alone = np.zeros((30, n_classes))
            if teacher is not None:
                alone = teacher.probabilities(points, n_classes) * GRID
            assert np.abs(own - alone).max() <= 1
            assert set(own.sum(axis=1).tolist()) <= {0, GRID}


def test_votes_count_as_certain_where_there_are_no_probabilities() -> None:
    data = chunks(3)
    one_class = Chunks(data.features, np.zeros_like(data.codes), data.rows, data.keys)
    empty = Chunks(data.features, data.codes, [data.rows[0][:0]], data.keys)
    for learner in (LinearSVC(), odd.Careless()):
        found = votes_of(learner, data, soft=True)
        assert set(found.ravel().tolist()) <= {0, GRID}
        assert (votes_of(learner, one_class, soft=True)[:, :, 0] == GRID).all()
        assert (votes_of(learner, empty, soft=True) == 0).all()


@pytest.mark.parametrize("learner", [odd.Dies(), odd.OddProbabilities()])
def test_what_is_no_probability_is_no_opinion(learner: Any) -> None:
    data = chunks(2, first=[3, 4])
    assert (votes_of(learner, data, soft=True) == 0).all()
