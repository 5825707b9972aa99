"""A model file in a process of its own: if a crafted one crashes or hangs, it does so
there.

The process loads the model once, and then takes one table after the other.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any, BinaryIO, cast

import numpy as np

from mapl.errors import CertificateError
from mapl.interpreter import SAFE_PATH, command
from mapl.publish.bundle import as_read, column_names_of, load_model

_MOST_SECONDS = 600  # for the predictions of one table
_MOST_BYTES = 2**34  # of a message
_LENGTH = struct.Struct("<Q")


class ModelApart:
    """A model that is asked in another process. Use it as a context.

    ``data`` is the content of its file, ``path`` what it is called. ``columns`` are the
    names of the columns that it needs.
    """

    def __init__(self, path: Path, data: bytes) -> None:
        self.path, self._data, self.columns = path, data, list[str]()

    def __enter__(self) -> ModelApart:
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
            command(__name__, str(self.path.absolute())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | SAFE_PATH,
        )
        try:
            self._send(self._data)
            self.columns = list(self._answer()["columns"])
        except BaseException:
            self.__exit__()
            raise
        return self

    def predict(self, table: Any) -> dict[str, Any]:
        """Return the labels of records, and the probabilities of the classes if the
        model has them.
        """
        self._send(pickle.dumps(table))
        return self._answer()

    def _send(self, data: bytes) -> None:
        try:
            _send(cast(BinaryIO, self._process.stdin), data)
        except OSError:
            raise CertificateError(self._crashed) from None

    @property
    def _crashed(self) -> str:
        return f"The model in {self.path} crashed, or took too long."

    def _answer(self) -> dict[str, Any]:
        timer = Timer(_MOST_SECONDS, self._process.kill)
        timer.start()
        try:
            data = _receive(cast(BinaryIO, self._process.stdout))
            answer = dict(json.loads(data)) if data else {"error": self._crashed}
        except ValueError:
            answer = {"error": self._crashed}
        finally:
            timer.cancel()
        if "error" in answer:
            raise CertificateError(str(answer["error"]))
        return answer

    def __exit__(self, *error: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # of what a process that crashed did not read
                cast(BinaryIO, pipe).close()
        self._process.kill()
        self._process.wait()


def serve(place: str) -> None:
    """Load a model, then label one table after the other."""
    answer_all(Path(place), sys.stdin.buffer, sys.stdout.buffer)


def answer_all(path: Path, given: BinaryIO, answers: BinaryIO) -> None:
    """Load the model that is given first; answer each table that follows."""
    try:
        model = load_model(path, _receive(given) or b"")
        _say(answers, {"columns": column_names_of(model)})
        while data := _receive(given):
            table = pickle.loads(data)  # noqa: S301 - from our own process
            _say(answers, _predicted(path, model, table))
    except CertificateError as error:
        _say(answers, {"error": str(error)})


def _predicted(path: Path, model: Any, table: Any) -> dict[str, Any]:
    try:
        table = as_read(model, table)
        found = {"labels": [str(label) for label in model.predict(table).tolist()]}
        if hasattr(model, "predict_proba"):
            shares = np.asarray(model.predict_proba(table), dtype=np.float64)
            found["classes"] = [str(label) for label in model.classes_.tolist()]
            found["shares"] = shares.T.tolist()
        return found
    except Exception as error:  # the model may come from a stranger
        raise CertificateError(
            f"The model in {path} fails on these records ({type(error).__name__})."
        ) from None


def _say(pipe: BinaryIO, answer: dict[str, Any]) -> None:
    _send(pipe, json.dumps(answer).encode())


def _send(pipe: BinaryIO, data: bytes) -> None:
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def _receive(pipe: BinaryIO) -> bytes | None:
    """Return the next message, None if there is no other."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    data = pipe.read(size) if size <= _MOST_BYTES else b""
    return data if len(data) == size else None
