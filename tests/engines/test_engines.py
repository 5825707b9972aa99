"""Tasks are run, repeated where a worker dies, and raise what they raise."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from mapl.engines import local
from mapl.engines.engine import Engine, WorkerLostError, make_engine
from mapl.engines.local import LocalEngine, serve
from mapl.engines.on_ray import RayEngine, _run
from mapl.errors import ParameterError

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def ray_engine() -> Iterator[RayEngine]:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    engine = RayEngine(n_workers=2)
    yield engine
    engine.close()


@pytest.fixture(params=["one", "two", "ray"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "ray":
        yield request.getfixturevalue("ray_engine")
        return
    made = LocalEngine({"one": 1, "two": 2}[request.param])
    yield made
    made.close()


def multiplied(factor: int, number: int) -> int:
    if number < 0:
        raise ParameterError(f"a negative number: {number}")
    return factor * number


def die_once(folder: str, number: int) -> int:
    """Kill this very process, the first time."""
    mark = Path(folder) / str(number)
    if number % 3 == 0 and not mark.exists():
        mark.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def always_die(_: None, number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_every_task_has_its_result(engine: Engine) -> None:
    for factor in (2, 3):  # the workers stay
        found = dict(engine.map(multiplied, factor, list(range(11))))
        assert found == {i: factor * i for i in range(11)}
    assert list(engine.map(multiplied, 1, [])) == []


def test_what_a_task_raises_is_raised(engine: Engine) -> None:
    with pytest.raises(ParameterError, match="a negative number: -1"):
        list(engine.map(multiplied, 1, [1, 2, -1]))
    assert sorted(engine.map(multiplied, 1, [5])) == [(0, 5)]


@pytest.mark.parametrize("kind", ["local", "ray"])
def test_a_killed_worker_is_replaced(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    engine: Any = LocalEngine(2)
    if kind == "ray":
        engine = request.getfixturevalue("ray_engine")
    found = dict(engine.map(die_once, str(tmp_path), list(range(10))))
    assert found == {i: i for i in range(10)}
    assert len(list(tmp_path.iterdir())) == 4
    if kind == "local":
        engine.close()


def test_a_task_that_kills_every_worker_ends_the_fit() -> None:
    engine = LocalEngine(2)
    with pytest.raises(WorkerLostError, match="smaller memory limit"):
        list(engine.map(always_die, None, [1]))
    engine.close()


def unreadable() -> None:
    raise ModuleNotFoundError("no such estimator")


class Unreadable:
    def __reduce__(self) -> Any:
        return unreadable, ()


def test_what_a_cluster_cannot_load_is_one_sentence(ray_engine: RayEngine) -> None:
    with pytest.raises(ParameterError, match="install the same versions"):
        list(ray_engine.map(multiplied, Unreadable(), [1]))


def test_ray_gives_up_too(
    ray_engine: RayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mapl.engines.on_ray.RETRIES", 0)
    with pytest.raises(WorkerLostError):
        list(ray_engine.map(always_die, None, [1]))


def test_workers_end_with_their_engine_and_with_this_process() -> None:
    engine = LocalEngine(2)
    list(engine.map(multiplied, 1, [1, 2, 3]))
    processes = [worker.process for worker in engine._workers]
    assert all(process.poll() is None for process in processes)
    engine._workers[0].line.close()  # as if this process were killed
    deadline = time.monotonic() + 20
    while processes[0].poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes[0].poll() is not None
    del engine
    assert processes[1].wait(timeout=20) is not None


def test_a_worker_runs_tasks_until_its_line_closes() -> None:
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=(theirs.detach(),))
    thread.start()
    line = Connection(ours.detach())
    common = cloudpickle.dumps((multiplied, 7))
    answers = []
    for head, number in ((common, 2), (None, 3), (None, -1)):
        line.send_bytes(cloudpickle.dumps((head, number)))
        answers.append(cloudpickle.loads(line.recv_bytes()))
    assert answers[:2] == [(False, 14), (False, 21)]
    assert answers[2][0]
    assert isinstance(answers[2][1], ParameterError)
    line.close()
    thread.join(20)
    assert not thread.is_alive()


def test_engines_are_made_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_engine("local", n_workers=1), LocalEngine)
    own = LocalEngine(1)
    assert make_engine(own, n_workers=2) is own
    with pytest.raises(ParameterError, match="engine must be 'local', 'ray'"):
        make_engine("spark", n_workers=1)
    monkeypatch.setattr("builtins.__import__", _without_ray(__import__))
    with pytest.raises(ParameterError, match=r"pip install 'mapl\[ray\]'"):
        make_engine("ray", n_workers=1)


def _without_ray(real: Any) -> Any:
    def imported(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "ray":
            raise ImportError
        return real(name, *args, **kwargs)

    return imported


def test_a_cluster_that_is_not_there_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray

    def refused(**_: Any) -> None:
        raise ConnectionError("nobody listens")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refused)
    with pytest.raises(ParameterError, match="No Ray cluster can be reached"):
        RayEngine(address="127.0.0.1:1")


def test_a_task_on_ray_returns_what_it_raises() -> None:
    common = cloudpickle.dumps((multiplied, 2))
    assert _run(common, 4) == (False, 8)
    failed, error = _run(common, -4)
    assert failed
    assert isinstance(error, ParameterError)


def test_a_cluster_that_runs_is_used_and_left(ray_engine: RayEngine) -> None:
    other = RayEngine()
    assert dict(other.map(multiplied, 3, [1])) == {0: 3}
    other.close()
    assert dict(ray_engine.map(multiplied, 3, [2])) == {0: 6}


def test_a_message_to_a_dead_worker_is_noticed_later() -> None:
    worker = local._start()
    worker.process.kill()
    worker.process.wait()
    worker.line.close()
    worker.send((None, 1))
