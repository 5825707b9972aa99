"""Private votes and counts in, public answers out.

Everything that is asked is a step of one job. A step that an earlier run of the job has
finished is not asked again: its stored reply is returned.
"""

import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from mapl.arrays import Integers, Ints
from mapl.errors import MechanismStateError
from mapl.privacy.answers import ShareBatch
from mapl.privacy.charged_dissent import ChargedDissent
from mapl.privacy.noisy_counts import NoisyCount
from mapl.privacy.noisy_max import NoisyMax
from mapl.privacy.sparse_vector import SparseVector
from mapl.privacy.votes import Votes
from mapl.release.account import Account

Mechanism = SparseVector | NoisyMax | ChargedDissent


class Labeler:
    """Answers queries about public points with the votes of private teachers.

    ``predictions`` are the votes on all public points, shape (n_teachers, n_queries).
    The account is charged with a mechanism when that is opened.
    """

    def __init__(
        self,
        predictions: Integers,
        *,
        n_classes: int,
        account: Account,
    ) -> None:
        self._votes = Votes.from_predictions(predictions, n_classes=n_classes)
        self.account = account
        self._mechanism: Mechanism | None = None
        self.step, self._failed = 0, False

    def open(self, mechanism: Mechanism) -> None:
        """Charge the whole price of a mechanism; from then on it may answer."""
        if self._mechanism is not None:
            raise MechanismStateError(
                "This labeler has an open mechanism already. Make a new one."
            )
        self.account.charge(mechanism.event)
        self._mechanism = mechanism

    def labels(self, rows: Ints) -> Ints:
        """Return the open mechanism's labels for some of the points, once."""
        mechanism = self._mechanism
        if not isinstance(mechanism, SparseVector | NoisyMax):
            raise MechanismStateError(
                "labels() needs an open SparseVector or NoisyMax. Nothing was released."
            )
        with self._next_step() as step:
            if step > 1:
                raise MechanismStateError("Labels can be asked for in one batch only.")
            stored = self.account.stored_step(step)
            if stored is not None and stored.reply is not None:
                return _unpack(stored.reply)
            self.account.commit_question(step, {}, _pack(rows))
            drawn = _pack(mechanism.answer(self._of(rows)).labels)
            return _unpack(self.account.commit_reply(step, {}, drawn)[1])

    def shares(self, rows: Ints, guess: Ints) -> ShareBatch:
        """Return the noisy shares of who disagrees with a public guess.

        A step that was begun earlier goes on with the points and the guess that it
        began with.
        """
        mechanism = self._mechanism
        if not isinstance(mechanism, ChargedDissent):
            raise MechanismStateError(
                "shares() needs an open ChargedDissent. Nothing was released."
            )
        with self._next_step() as step:
            stored = self.account.stored_step(step)
            if stored is not None:
                rows, guess = _unpack(stored.question)
            if stored is not None and stored.reply is not None:
                state, reply = stored.state, stored.reply
            else:
                question = _pack(np.stack((rows, guess)))

                def commit() -> None:
                    self.account.commit_question(step, mechanism.state(), question)

                answer = mechanism.answer(self._of(rows), guess, before_draw=commit)
                state, reply = self.account.commit_reply(
                    step, mechanism.state(), _pack(answer.counts)
                )
            mechanism.resume(state)
        return ShareBatch(rows, guess, _unpack(reply) / mechanism.n_teachers)

    @contextmanager
    def _next_step(self) -> Iterator[int]:
        """Number the steps. None follows a failed one, whose effect on the mechanism is
        unknown.
        """
        if self._failed:
            raise MechanismStateError(
                "An earlier step failed. Make a new labeler: it goes on from what was "
                "committed."
            )
        self._failed = True
        yield self.step + 1
        self.step += 1
        self._failed = False

    def _of(self, rows: Ints) -> Votes:
        return Votes(self._votes.predictions[:, rows], self._votes.n_classes)

    def __repr__(self) -> str:
        return f"Labeler({self._votes.n_queries} public points)"


def release_count(
    mechanism: NoisyCount, count: Callable[[], int], *, account: Account
) -> int:
    """Charge for one noisy count and publish it; ``count`` runs unless it is stored."""
    account.charge(mechanism.event)
    stored = account.stored_step(1)
    if stored is not None and stored.reply is not None:
        return int(stored.reply)
    exact = count()
    account.commit_question(1, {}, b"")
    return int(account.commit_reply(1, {}, b"%d" % mechanism.answer(exact))[1])


def _pack(values: Ints) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    return zlib.compress(file.getvalue(), 1)


def _unpack(data: bytes) -> Ints:
    loaded = np.load(io.BytesIO(zlib.decompress(data)), allow_pickle=False)
    return np.asarray(loaded, dtype=np.int64)
