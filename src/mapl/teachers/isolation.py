"""Processes for teachers whose code we do not know: records in, votes out.

A server process is started with a new interpreter. It loads what is public, the learner
and the points to be asked about, and never sees a private record. For each task it
forks a child; the records go to that child directly, through a socket of its own, and
what comes back are integers for each teacher and point. Whatever else the learner
does (prints, exits, crashes, writes files, changes its class or the environment) ends
with the child and its folder.
"""

from __future__ import annotations

import gc
import math
import os
import pickle
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import numpy as np
import sklearn

from mapl.arrays import Array, Integers, Ints
from mapl.errors import MaplError, ParameterError
from mapl.interpreter import ONE_THREAD, SAFE_PATH, command
from mapl.privacy.votes import NO_VOTE
from mapl.teachers.known import is_known, silent_clone
from mapl.teachers.panel import Panel
from mapl.teachers.silence import teacher_surroundings
from mapl.teachers.training import train

_VOTE, _SHARE = np.dtype("<i4"), np.dtype(np.uint8)
_LENGTH = struct.Struct("<Q")
_FOLDERS = ["TMPDIR", "TEMP", "TMP", "JOBLIB_TEMP_FOLDER", "HOME", "XDG_CACHE_HOME"]
_FOLDERS += ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"]
_POLL_SECONDS = 0.05
_FOLDER = "mapl-teachers-"


@dataclass(frozen=True, repr=False)
class PublicPart:
    """What all teachers share: the learner, its labels, the points to ask about."""

    estimator: Any
    points: Any
    labels: Array
    random_state: int
    soft: bool = False  # whether teachers give probabilities, in steps of 1/GRID

    def answers(self, teachers: list[Any], points: Any) -> Integers:
        """Return what teachers say about some points."""
        panel = Panel(teachers, n_classes=len(self.labels), soft=self.soft)
        return panel.ask_softly(points) if self.soft else panel.ask(points)


@dataclass(frozen=True, repr=False)
class Task:
    """Chunks to train on in one process, with their teachers' numbers. Private.

    ``points`` are asked about instead of the public ones, if given.
    """

    numbers: Sequence[int]
    chunks: list[tuple[Any, Ints]]  # features, and the class index of each record
    points: Any = None


class TeacherServer:
    """Runs tasks in processes of their own; a context manager.

    Parameters
    ----------
    public : PublicPart
        Sent to the server once.
    n_points : int
        How many votes each teacher has.
    time_limit : float or None
        Seconds after which a task is ended; public.
    """

    def __init__(
        self, public: PublicPart, *, n_points: int, time_limit: float | None = None
    ) -> None:
        if not hasattr(os, "fork"):
            raise ParameterError(
                "This learner needs a process for each teacher, which needs Linux or "
                "macOS. Use one of scikit-learn's own classifiers."
            )
        self._public, self.n_points, self._time_limit = public, n_points, time_limit
        self._lock = threading.Lock()

    def __enter__(self) -> TeacherServer:
        remove_stale_folders()
        self._folder = tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-")
        self._control, theirs = socket.socketpair()
        try:
            self._start(theirs)
        except BaseException:
            self.__exit__()
            raise
        finally:
            theirs.close()
        return self

    def _start(self, theirs: socket.socket) -> None:
        payload = sendable((self._public, sklearn.get_config()))
        # Strings hash alike in every run: what a learner does with sets is repeatable.
        surroundings = ONE_THREAD | SAFE_PATH | {"PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
            command(__name__, str(theirs.fileno()), self._folder),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | surroundings,
            cwd=self._folder,  # a module that opens a file opens it there
        )
        theirs.close()
        _send(self._control, payload)
        answer = _receive(self._control)
        if answer != b"ready":
            reason = (answer or b"it ended").decode("utf-8", "replace")
            raise ParameterError(
                f"estimator cannot be loaded in a process of its own: {reason}. "
                "Nothing was released."
            )

    def __exit__(self, *error: object) -> None:
        self._control.close()  # the server ends its children, and itself
        if process := self.__dict__.get("_process"):
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def votes(self, task: Task) -> Integers | None:
        """Return the votes of a task's teachers, or None if its process gave none."""
        mine, theirs = socket.socketpair()
        with mine:
            with theirs, self._lock:
                try:
                    socket.send_fds(self._control, [b"t"], [theirs.fileno()])
                except OSError:
                    raise MaplError(
                        "The process that starts teachers has ended. Nothing was "
                        "released."
                    ) from None
            return self._exchange(mine, task)

    def _exchange(self, mine: socket.socket, task: Task) -> Integers | None:
        shape = len(task.numbers), self.n_points
        if task.points is not None:
            shape = len(task.numbers), len(task.points)
        started = _receive(mine, until=None)
        if started is None:
            return None
        until = None
        if self._time_limit is not None:
            until = time.monotonic() + self._time_limit * len(task.numbers)
        try:
            _send(mine, pickle.dumps(task, protocol=5))
            found = _receive(mine, until=until)
        except OSError:
            found = None
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(int(started), signal.SIGKILL)
        if self._public.soft:
            return _checked_shares(found, (*shape, len(self._public.labels)))
        return _checked(found, shape, len(self._public.labels))


def sendable(public: Any) -> bytes:
    """Return what is sent to a server: the learner, and other public values."""
    try:
        return bytes(cloudpickle.dumps(public))
    except Exception as error:  # nothing here is private
        raise ParameterError(
            f"estimator cannot be sent to a process of its own: {error} Nothing was "
            "released."
        ) from error


def check_loadable(estimator: Any) -> None:
    """Refuse a learner that needs a process and cannot be loaded in one."""
    if not is_known(silent_clone(estimator)):
        nothing = np.empty((0, 1))
        public = PublicPart(silent_clone(estimator), nothing, np.arange(2), 0)
        with TeacherServer(public, n_points=0):
            pass


def _checked(
    found: bytes | None, shape: tuple[int, int], n_classes: int
) -> Integers | None:
    """Return votes that are what votes may be; nothing else comes out of a process."""
    if found is None or len(found) != shape[0] * shape[1] * _VOTE.itemsize:
        return None
    votes = np.frombuffer(found, dtype=_VOTE).reshape(shape)
    valid = (votes >= NO_VOTE) & (votes < n_classes)
    return np.where(valid.all(axis=1, keepdims=True), votes, NO_VOTE)


def _checked_shares(
    found: bytes | None, shape: tuple[int, int, int]
) -> Integers | None:
    """Return probabilities as integers; the mechanism checks their sum."""
    if found is None or len(found) != math.prod(shape):
        return None
    return np.frombuffer(found, dtype=_SHARE).reshape(shape)


def remove_stale_folders() -> int:
    """Remove what killed fits of this user left in the temporary folder."""
    removed = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        owner = folder.name.removeprefix(_FOLDER).partition("-")[0]
        with suppress(OSError, ValueError):
            if folder.stat().st_uid == os.getuid() and not _is_alive(int(owner)):
                shutil.rmtree(folder)
                removed += 1
    return removed


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


# Messages: a length, then as many bytes -----------------------------------------


def _send(end: socket.socket, data: bytes) -> None:
    end.sendall(_LENGTH.pack(len(data)))
    end.sendall(data)


def _receive(end: socket.socket, *, until: float | None = None) -> bytes | None:
    """Return a message; None if the other end closes or the time is over."""
    head = _read(end, _LENGTH.size, until)
    return None if head is None else _read(end, _LENGTH.unpack(head)[0], until)


def _read(end: socket.socket, n: int, until: float | None) -> bytes | None:
    parts: list[bytes] = []
    while n:
        wait = None if until is None else max(0.0, until - time.monotonic())
        if not select.select([end], [], [], wait)[0]:
            return None
        try:
            part = end.recv(min(n, 1 << 20))
        except ConnectionError:
            return None
        if not part:
            return None
        parts.append(part)
        n -= len(part)
    return b"".join(parts)


# The server's side: this runs in the new interpreter ----------------------------


def serve(descriptor: str, folder: str) -> NoReturn:  # pragma: no cover - other process
    """Fork a child for each socket that arrives, until the other end closes."""
    import mapl.teachers.trees  # noqa: F401 - once here, not in each child

    control = socket.socket(fileno=int(descriptor))
    children: dict[int, str] = {}
    try:
        payload = _receive(control)
        if payload is None:
            os._exit(1)
        public, config = _loaded(control, payload)
        sklearn.set_config(**config)
        with teacher_surroundings():
            _send(control, b"ready")
            gc.freeze()  # children then share these objects' memory
            while True:
                _reap(children)
                if not select.select([control], [], [], _POLL_SECONDS)[0]:
                    continue
                message, descriptors, *_ = socket.recv_fds(control, 1, 1)
                if not message:
                    break
                _start_child(control, descriptors[0], public, folder, children)
    finally:
        for child in children:
            with suppress(OSError):
                os.killpg(child, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def _loaded(
    control: socket.socket, payload: bytes
) -> tuple[PublicPart, dict[str, Any]]:  # pragma: no cover - other process
    try:
        public, config = pickle.loads(payload)  # noqa: S301 - from our own process
    except BaseException as error:
        _send(control, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    return public, config


def _start_child(
    control: socket.socket,
    descriptor: int,
    public: PublicPart,
    folder: str,
    children: dict[int, str],
) -> None:  # pragma: no cover - other process
    own = tempfile.mkdtemp(dir=folder)
    child = os.fork()
    if child:
        os.close(descriptor)
        children[child] = own
        return
    try:
        control.close()
        _enter_sandbox(own, descriptor)
        _run_task(socket.socket(fileno=descriptor), public)
    finally:
        os._exit(0)


def _reap(children: dict[int, str]) -> None:  # pragma: no cover - other process
    """Clean up after children that have ended, and end what they left running."""
    for child in list(children):
        ended, _ = os.waitpid(child, os.WNOHANG)
        if ended:
            with suppress(OSError):
                os.killpg(child, signal.SIGKILL)
            shutil.rmtree(children.pop(child), ignore_errors=True)


def _enter_sandbox(folder: str, kept: int) -> None:  # pragma: no cover - other process
    """Give a child its own session and folder, and no output."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.closerange(3, kept)  # files that the learner's module opened
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
    for name in _FOLDERS:
        os.environ[name] = folder
    tempfile.tempdir = folder
    os.chdir(folder)


def _run_task(
    end: socket.socket, public: PublicPart
) -> None:  # pragma: no cover - other process
    """Say who this is, train, vote."""
    _send(end, b"%d" % os.getpid())
    received = _receive(end)
    if received is None:
        return
    task: Task = pickle.loads(received)  # noqa: S301 - from our own process
    teachers = []
    for number, (features, codes) in zip(task.numbers, task.chunks, strict=True):
        teachers += train(
            public.estimator,
            features,
            codes,
            [np.arange(len(codes))],
            labels=public.labels,
            random_state=public.random_state,
            numbers=[number],
        )
    points = public.points if task.points is None else task.points
    votes = public.answers(teachers, points)
    kind = _SHARE if public.soft else _VOTE
    _send(end, np.ascontiguousarray(votes, dtype=kind).tobytes())
