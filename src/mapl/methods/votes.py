"""Teachers vote: any classifier, one on each chunk, and a student of their answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mapl.arrays import Array, Integers, Ints
from mapl.errors import MaplError
from mapl.learners import set_seeds
from mapl.methods.published import Published
from mapl.planning.settings import Setting
from mapl.privacy.charged_dissent import ChargedDissent
from mapl.records.encoding import public_features
from mapl.records.private import PrivateRecords
from mapl.records.table import Table
from mapl.release.account import Account
from mapl.release.labeler import Labeler
from mapl.scale.records import StreamedRecords
from mapl.scale.votes import Asking, votes_by_bucket
from mapl.student.fitting import fit_to_shares
from mapl.student.one_batch import OneBatch
from mapl.student.rounds import Rounds, SoftLabels
from mapl.teachers.voting import Checkpoints, Chunks, collect_votes

_PUBLIC_TEACHERS = 3


@dataclass(frozen=True)
class Panel:
    """Who votes: clones of an estimator, on chunks of the records."""

    estimator: Any
    n_teachers: int
    n_jobs: int | None
    time_limit: float | None
    seconds_each: float

    def votes(
        self,
        private: PrivateRecords | StreamedRecords,
        table: Table,
        classes: Array,
        seed: int,
        kept: Checkpoints | None,
        *,
        soft: bool = False,
    ) -> Integers:
        """Return the votes of all teachers on the public points, or their
        probabilities. Private.
        """
        if isinstance(private, StreamedRecords):
            return self._streamed(private, table, classes, seed, soft=soft)
        rows = private.chunks(self.n_teachers, salt=seed)
        chunks = Chunks(private.table.data, private.codes, rows, private.keys)
        return self._collect(chunks, table, classes, seed, kept, soft=soft)

    def _streamed(
        self,
        private: StreamedRecords,
        table: Table,
        classes: Array,
        seed: int,
        *,
        soft: bool,
    ) -> Integers:
        return votes_by_bucket(
            private,
            Asking(
                self.estimator,
                self.n_teachers,
                table.data,
                classes,
                seed,
                soft,
                self.time_limit,
            ),
        )

    def public_shares(
        self, table: Table, codes: Ints, size: int, classes: Array, seed: int
    ) -> Integers:
        """Return the probabilities of a few teachers that learned from public points
        with made-up labels. Public.
        """
        rng = np.random.default_rng(seed)
        rows = [rng.integers(0, len(codes), size) for _ in range(_PUBLIC_TEACHERS)]
        nobody = np.zeros((len(codes), 1), dtype=np.uint64)
        chunks = Chunks(table.data, codes, rows, nobody)
        return self._collect(chunks, table, classes, seed, None, soft=True)

    def _collect(
        self,
        chunks: Chunks,
        table: Table,
        classes: Array,
        seed: int,
        kept: Checkpoints | None,
        *,
        soft: bool,
    ) -> Integers:
        before = table.digest()
        votes = collect_votes(
            self.estimator,
            chunks,
            table.data,
            labels=classes,
            random_state=seed,
            n_jobs=self.n_jobs,
            seconds_each=self.seconds_each,
            time_limit=self.time_limit,
            checkpoints=kept,
            soft=soft,
        )
        if table.digest() != before:
            raise MaplError(
                "A teacher changed the public points. Nothing was released."
            )
        return votes


def learn_by_votes(
    panel: Panel,
    private: PrivateRecords | StreamedRecords,
    table: Table,
    pool: Any,
    account: Account,
    setting: Setting,
    student: Any,
    *,
    classes: Array,
    on_abstain: str,
) -> Published:
    """Publish a student of the teachers' answers about the public points."""
    features: Any = None
    if setting.name == "dissent":
        features = public_features(panel.estimator, pool)
    with account.checkpoints() as kept:
        votes = panel.votes(private, table, classes, account.seed, kept)
        answers = _release(setting, votes, account, features, n_classes=len(classes))
    set_seeds(student, account.seed)
    if isinstance(answers, OneBatch):
        fitted = answers.fit(student, pool, classes, on_abstain=on_abstain)
        return Published(fitted, answers.labels, None, [answers.spending()])
    fitted = fit_to_shares(student, pool, answers.smooth, classes)
    spending = list(zip(answers.asked, answers.spent, strict=True))
    return Published(fitted, answers.labels, answers.noisy, spending)


def _release(
    setting: Setting,
    votes: Integers,
    account: Account,
    features: Any,
    *,
    n_classes: int,
) -> SoftLabels | OneBatch:
    """Publish answers about the public points, through the labeler."""
    labeler = Labeler(votes, n_classes=n_classes, account=account)
    mechanism = setting.make_mechanism()
    labeler.open(mechanism)
    if isinstance(mechanism, ChargedDissent):
        with Rounds(features, mechanism, seed=account.seed) as rounds:
            while not rounds.done:
                rounds.take(labeler.shares(*rounds.next()))
        return rounds.result()
    batch = OneBatch(votes.shape[1], mechanism, seed=account.seed)
    batch.take(labeler.labels(batch.rows))
    return batch
