"""A panel in a folder: teachers trained once, opened under a budget, asked for years.

The folder holds ``panel.json``, which is public, and ``teachers.bin``, which is
encrypted under the ledger's key and bound to its data set.
"""

from __future__ import annotations

import json
import pickle
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mapl.arrays import Ints
from mapl.errors import (
    LedgerError,
    MaplError,
    NotOpenError,
    ParameterError,
    one_of,
)
from mapl.ledger.files import write_for_owner
from mapl.ledger.job import who_and_when
from mapl.ledger.ledger import Balance, Ledger
from mapl.ledger.turns import turn
from mapl.online.encoder import QuickEncoder
from mapl.online.folder import (
    FORM,
    PUBLIC,
    SECRET,
    fixed_part,
    read_public,
)
from mapl.planning.settings import setting_for
from mapl.privacy.charged_dissent import ChargedDissent
from mapl.privacy.events import from_json
from mapl.privacy.sparse_vector import SparseVector
from mapl.privacy.votes import ABSTAIN
from mapl.publish.loading import PublishedModel, load
from mapl.records.keys import record_keys
from mapl.records.schema import Column, Schema
from mapl.records.table import Table, canonical_table, joined
from mapl.release.online import OnlineLabeler, OnlineMechanism, Outcome, Request
from mapl.teachers.panel import Panel as Teachers

MECHANISMS = ("sparse-vector", "dissent")


@dataclass(frozen=True)
class Answers:
    """What a panel says of some records. Public.

    ``labels`` has a label for each, None where there is none; ``abstained`` says where.
    """

    labels: list[Any]
    abstained: list[bool]


@dataclass(frozen=True, repr=False)
class Question:
    """Records to ask about, under a name; ``by`` says who asks."""

    records: Table
    id: str | None = None
    by: str = ""


class Panel:
    """Teachers that were trained once, and answer queries while a budget lasts.

    Make one with `train_panel` (``mapl panel train``), and load it from its folder.

    Attributes
    ----------
    folder : Path
        Where it is.
    public : dict
        What may be known of it.

    Notes
    -----
    Requires: one unit changes at most one teacher.
    Guarantee: all answers of an opened panel together cost what was charged when it was
    opened. Proof: docs/proofs/SparseVector.md, docs/proofs/ChargedDissent.md
    """

    def __init__(self, folder: Path, public: dict[str, Any]) -> None:
        self.folder, self.public = folder, public
        self.ledger = Ledger(public["ledger"])
        self._teachers: Teachers | None = None
        self._labelers: dict[str, OnlineLabeler] = {}  # by opening
        self._guess: tuple[str, PublishedModel] | None = None  # and where it is
        self._seed, self._digest = 0, ""

    @classmethod
    def load(cls, folder: str | Path) -> Panel:
        """Load the panel in a folder; its teachers are read when they are asked."""
        folder = Path(folder)
        return cls(folder, read_public(folder))

    # Opening ----------------------------------------------------------------------

    def open(
        self,
        *,
        mechanism: str = "sparse-vector",
        epsilon: float,
        delta: float = 1e-5,
        cutoff: int = 20,
        queries: int = 1000,
        guess: str | Path | None = None,
    ) -> dict[str, Any]:
        """Pay for a mechanism from the ledger; from then on the panel answers.

        Parameters
        ----------
        mechanism : {"sparse-vector", "dissent"}
            Pays for answers that are withheld, or for teachers that disagree.
        epsilon, delta : float
            What all answers together may cost.
        cutoff : int
            How many answers a sparse vector may withhold.
        queries : int
            About how many queries dissent is planned for.
        guess : path or None
            A published model: teachers that agree with it pay nothing.
        """
        one_of(*MECHANISMS, mechanism=mechanism)
        if guess is not None and mechanism != "dissent":
            raise ParameterError("guess goes with mechanism 'dissent'.")
        made = self._mechanism_for(mechanism, epsilon, delta, cutoff, queries)
        self._refuse_hopeless(made)
        if guess is not None:
            self._check_guess(load(guess))
        with self._changing():
            if self.is_open:
                raise ParameterError(f"{self.folder} is open. Close it first.")
            opening = {
                "number": len(self.public["openings"]) + 1,
                "mechanism": mechanism,
                "event": made.event.to_json(),
                "epsilon": float(epsilon),
                "delta": float(delta),
                "guess": None if guess is None else str(Path(guess).resolve()),
                "closed": False,
            }
            self._new_labeler(opening).open()
            self._write_openings([*self.public["openings"], opening])
        return opening

    def _refuse_hopeless(self, made: OnlineMechanism) -> None:
        """Refuse a sparse vector that would withhold every answer."""
        half = self.public["n_teachers"] // 2  # the largest distance of two classes
        if isinstance(made, SparseVector) and made.threshold >= half:
            raise ParameterError(
                f"A sparse vector for this epsilon and cutoff needs more than "
                f"{2 * made.threshold} teachers, the panel has {2 * half}: it would "
                "answer nothing. Use a larger epsilon, a smaller cutoff, or mechanism "
                "'dissent'."
            )

    def close(self) -> None:
        """Answer nothing more; what was paid is not given back."""
        with self._changing():
            if not self.is_open:
                raise ParameterError(f"{self.folder} is not open.")
            openings = [{**o, "closed": True} for o in self.public["openings"]]
            self._write_openings(openings)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Let nobody else open or close it meanwhile."""
        with turn(self.ledger.store, f"panel-{self.public['id']}"):
            self.refresh()
            yield

    def _write_openings(self, openings: list[dict[str, Any]]) -> None:
        changed = {**self.public, "openings": openings}
        shown = json.dumps(changed, indent=2).encode()
        write_for_owner(self.folder / PUBLIC, shown)
        self.public = changed

    @property
    def is_open(self) -> bool:
        """Whether it answers."""
        openings = self.public["openings"]
        return bool(openings) and not openings[-1]["closed"]

    def show(self) -> dict[str, Any]:
        """Return what may be known of the panel, and of its answers so far."""
        self.refresh()
        shown = {
            "dataset": self.public["dataset"],
            "estimator": self.public["estimator"],
            "teachers": self.public["n_teachers"],
            "classes": self.public["classes"],
            "columns": list(self.public["columns"]),
            "open": self.is_open,
        }
        if self.is_open:
            opening = self.public["openings"][-1]
            labeler = self._labeler(opening)
            shown |= {name: opening[name] for name in ("mechanism", "epsilon", "delta")}
            shown["requests_answered"] = labeler.n_replies()
            left = labeler.abstentions_left()
            shown |= {} if left is None else {"abstentions_left": left}
        return shown

    def warm_up(self) -> None:
        """Read the teachers now, so that the first question does not wait for them."""
        self._read_secret()
        if self.is_open:
            self._labeler(self.public["openings"][-1])

    def balance(self) -> Balance:
        """Return what its data set may cost, and what is spent. Public."""
        return self.ledger.balance(self.public["dataset"])

    def can_answer(self) -> bool:
        """Whether it is open, and has not withheld all that was paid for."""
        self.refresh()
        if not self.is_open:
            return False
        return self._labeler(self.public["openings"][-1]).abstentions_left() != 0

    def _mechanism_for(
        self, name: str, epsilon: float, delta: float, cutoff: int, queries: int
    ) -> OnlineMechanism:
        if name == "sparse-vector":
            return SparseVector.for_budget(
                epsilon=epsilon, delta=delta, cutoff=cutoff, restartable=True
            )
        setting = setting_for(
            "dissent",
            n_teachers=self.public["n_teachers"],
            n_points=queries,
            n_classes=len(self.public["classes"]),
            epsilon=epsilon,
            delta=delta,
        )
        return setting.make_mechanism()  # type: ignore[return-value]

    def _made(self, opening: dict[str, Any]) -> OnlineMechanism:
        """Return the mechanism of an opening, as it was paid for."""
        event: Any = from_json(opening["event"])
        if opening["mechanism"] == "sparse-vector":
            return SparseVector.from_event(event)
        return ChargedDissent(
            sigma=event.sigma,
            dissents=event.steps // 2,
            n_teachers=self.public["n_teachers"],
            n_classes=len(self.public["classes"]),
        )

    def _labeler(self, opening: dict[str, Any]) -> OnlineLabeler:
        """Return who answers for an opening, which must be paid for."""
        key = json.dumps(opening, sort_keys=True)
        if key not in self._labelers:
            made = self._new_labeler(opening)
            if not made.is_paid():
                raise NotOpenError(
                    f"The last opening of {self.folder.name} was not paid for: "
                    "panel.json was changed."
                )
            self._labelers[key] = made
        return self._labelers[key]

    def _new_labeler(self, opening: dict[str, Any]) -> OnlineLabeler:
        self._read_secret()
        request = json.dumps([FORM, self.public["id"], opening["number"]]).encode()
        request += json.dumps(opening["event"], sort_keys=True).encode()
        job = self.ledger.online_job(
            self.public["dataset"],
            request,
            delta=opening["delta"],
            what=f"panel, {opening['mechanism']}, {self.public['n_teachers']} teachers "
            f"({self.public['estimator']})",
        )
        bound = self.public["id"].encode()
        job.begin(self._seed, data=self._digest, assignment=lambda _: bound)
        return OnlineLabeler(job, lambda: self._made(opening), panel=self.public["id"])

    # Asking -----------------------------------------------------------------------

    def ask(self, X: Any, *, id: str | None = None) -> Answers:
        """Return labels for records, or none where teachers disagree too much.

        Parameters
        ----------
        X : DataFrame
            The records, with the panel's columns.
        id : str or None
            Names the request. The same name and records again return the same answer,
            for nothing; other records under that name are refused.
        """
        (found,) = self.ask_together([Question(canonical_table(X, self.schema), id)])
        if isinstance(found, MaplError):
            raise found
        return found

    def ask_together(self, questions: Sequence[Question]) -> list[Answers | MaplError]:
        """Return answers to several questions, which are answered as if one by one:
        teachers vote once, and the ledger is written once.
        """
        self.refresh()
        if not self.is_open:
            raise NotOpenError(
                f"The panel {self.folder.name} is not open. Open it: mapl panel open"
            )
        opening = self.public["openings"][-1]
        labeler = self._labeler(opening)
        table = joined([one.records for one in questions])
        keys = record_keys(table, None)
        ends = np.cumsum([len(one.records) for one in questions])
        requests = [
            Request(
                secrets.token_hex(16) if one.id is None else str(one.id),
                own.tobytes(),
                len(own),
                one.by or who_and_when()["who"],
            )
            for one, own in zip(questions, np.split(keys, ends[:-1]), strict=True)
        ]
        assert self._teachers is not None
        outcomes = labeler.ask(
            requests,
            self._teachers.ask(self._encoder.transform(table)),
            self._guesses(opening, table),
            n_classes=len(self.public["classes"]),
            before=[self._labeler(one) for one in self.public["openings"][:-1]],
        )
        return [self._as_answers(outcome) for outcome in outcomes]

    def _as_answers(self, outcome: Outcome) -> Answers | MaplError:
        if isinstance(outcome, MaplError):
            return outcome
        classes = self.public["classes"]
        labels = [None if c == ABSTAIN else classes[c] for c in outcome.tolist()]
        return Answers(labels, [label is None for label in labels])

    def refresh(self) -> None:
        """See what another process did with the panel: opened it, or closed it."""
        try:
            public = read_public(self.folder)
        except ParameterError:
            raise LedgerError(f"The panel {self.folder} is gone, or damaged.") from None
        if any(public[n] != self.public[n] for n in public if n != "openings"):
            raise LedgerError(
                f"{self.folder} holds another panel than it did. Load it again."
            )
        self.public = public

    def _guesses(self, opening: dict[str, Any], table: Table) -> Ints | None:
        """Return what a published model says of records, as class numbers."""
        if opening["guess"] is None:
            return None
        if self._guess is None or self._guess[0] != opening["guess"]:
            self._guess = opening["guess"], load(opening["guess"])
        index = {str(label): i for i, label in enumerate(self.public["classes"])}
        given = self._guess[1].predict(table.data)
        return np.array([index[str(label)] for label in given.tolist()], np.int64)

    def _check_guess(self, model: PublishedModel) -> None:
        known = {str(label) for label in model.classes_.tolist()}
        if not known <= {str(label) for label in self.public["classes"]}:
            raise ParameterError("guess must predict classes of the panel.")
        lacking = set(model.feature_names_in_) - set(self.public["columns"])
        if lacking:
            raise ParameterError(f"guess needs the column {min(lacking)!r}, too.")

    @cached_property
    def schema(self) -> Schema:
        """The types of the columns that records must have."""
        kinds = self.public["columns"].items()
        return Schema({name: Column(kind) for name, kind in kinds})

    def _read_secret(self) -> None:
        """Read the teachers, once."""
        if self._teachers is not None:
            return
        sealed = (self.folder / SECRET).read_bytes()
        data = self.ledger.store.cipher.decrypt(sealed, fixed_part(self.public))
        if data is None:
            raise LedgerError(
                f"The teachers in {self.folder} cannot be decrypted: they belong to "
                "another ledger or data set, or panel.json was changed."
            )
        # It was encrypted with the holder's own key: nobody else made this pickle.
        kept = pickle.loads(data)  # noqa: S301
        self._seed, self._digest = kept["seed"], kept["digest"]
        self._encoder = QuickEncoder(kept["encoder"])
        self._teachers = Teachers(
            kept["teachers"], n_classes=len(self.public["classes"])
        )

    def __repr__(self) -> str:
        return f"Panel({str(self.folder)!r})"
