"""Careless learners: each does to its process what a teacher must not do to others."""

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin


class Careless(ClassifierMixin, BaseEstimator):
    """Votes the first label, or what a subclass makes of its chunk."""

    def fit(self, X: Any, y: Any) -> Any:
        self.answer_ = self.choose(np.asarray(X), np.asarray(y))
        self.classes_ = np.unique(y)
        return self

    def choose(self, X: Any, y: Any) -> Any:
        return y[0]

    def predict(self, X: Any) -> Any:
        return np.full(len(X), self.answer_)


class Counts(Careless):
    """Remembers in its class how often it was fitted, and votes that."""

    fits = 0

    def choose(self, X: Any, y: Any) -> Any:
        type(self).fits += 1
        return type(self).fits % 2


class UsesEnvironment(Careless):
    def choose(self, X: Any, y: Any) -> Any:
        n = int(os.environ.get("FITS", "0")) + 1
        os.environ["FITS"] = str(n)
        return n % 2


class UsesGlobalGenerators(Careless):
    def choose(self, X: Any, y: Any) -> Any:
        return (random.getrandbits(8) + int(np.random.randint(256))) % 2  # noqa: NPY002


class Prints(Careless):
    def choose(self, X: Any, y: Any) -> Any:
        sys.stdout.write("a private value")
        sys.stderr.write("a private value")
        os.write(1, b"a private value")
        os.write(2, b"a private value")
        return 1


class Dies(Careless):
    """Ends its process in the way that the first feature says."""

    def choose(self, X: Any, y: Any) -> Any:
        way = int(X[0, 0])
        if way == 1:
            sys.exit("a private value")
        if way == 2:
            os._exit(3)
        if way == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if way == 4:
            os.kill(os.getpid(), signal.SIGSEGV)
        if way == 5:
            raise KeyboardInterrupt
        if way == 6:
            raise BaseException("a private value")
        return 1


class Hangs(Careless):
    def choose(self, X: Any, y: Any) -> Any:
        if X[0, 0] == 1:
            time.sleep(60)
        return 1


class LeavesFiles(Careless):
    """Writes its records to the working and the temporary folder."""

    def choose(self, X: Any, y: Any) -> Any:
        Path("careless.txt").write_text(str(X))
        with tempfile.NamedTemporaryFile("w", delete=False, suffix=".careless") as f:
            f.write(str(X))
        return 1


class LeavesProcesses(Careless):
    def choose(self, X: Any, y: Any) -> Any:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        return 1


class WritesIntoPoints(Careless):
    """Changes the points that it is asked about, as ``copy=False`` does."""

    def predict(self, X: Any) -> Any:
        X[:] = 98765.25
        return np.full(len(X), 1)


class AnswersNonsense(Careless):
    def predict(self, X: Any) -> Any:
        return np.full(len(X), 12345)


class CannotBeSent(Careless):
    def __init__(self, lock: Any = None) -> None:
        self.lock = lock

    def __sklearn_clone__(self) -> Any:
        return self


_OPENED = tempfile.TemporaryFile()  # noqa: SIM115 - when the module is imported


class UsesOpenFiles(Careless):
    """Remembers through a file that its module opened, or in its home folder."""

    def choose(self, X: Any, y: Any) -> Any:
        place = Path.home() / "careless"
        seen = place.exists()
        place.write_text("seen")
        try:
            os.write(_OPENED.fileno(), b"x")
            seen |= os.fstat(_OPENED.fileno()).st_size > 1
        except OSError:
            pass
        return int(seen)


class OddProbabilities(Careless):
    """Has probabilities that are none."""

    def predict_proba(self, X: Any) -> Any:
        return np.full((len(X), 2), np.nan)
