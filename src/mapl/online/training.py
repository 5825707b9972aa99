"""Train the teachers of a panel, and keep them in its folder."""

from __future__ import annotations

import json
import pickle
import secrets
from pathlib import Path
from typing import Any

import numpy as np

from mapl.arrays import Array
from mapl.errors import ParameterError
from mapl.learners import seed_of
from mapl.ledger.files import write_for_owner
from mapl.ledger.ledger import Ledger
from mapl.online.folder import FORM, PUBLIC, SECRET, fixed_part
from mapl.online.panel import Panel
from mapl.records.private import PrivateRecords
from mapl.records.schema import Schema
from mapl.teachers.known import is_known, silent_clone
from mapl.teachers.training import train


def train_panel(
    folder: Path,
    estimator: Any,
    private: PrivateRecords,
    *,
    public: Any,
    schema: Schema,
    classes: Array,
    n_teachers: int,
    ledger: str,
    dataset: str,
    seed: int | None = None,
) -> Panel:
    """Train teachers and keep them, encrypted. Costs nothing: nothing leaves.

    ``private`` are records in the types of ``schema``, ``public`` a cast table of
    public ones, which decide how columns become numbers.
    """
    estimator = silent_clone(estimator)
    if not is_known(estimator):
        raise ParameterError(
            "A panel keeps models, so estimator must be one of scikit-learn's own."
        )
    opened = Ledger(ledger)
    opened.balance(dataset)  # or an error that says what to do
    if folder.exists():
        raise ParameterError(f"{folder} is there already. Take another folder.")
    encoder, _ = schema.fit_encoder(public)
    salt = seed_of(seed)
    teachers = train(
        estimator,
        np.asarray(encoder.transform(private.table.data)),
        private.codes,
        private.chunks(n_teachers, salt=salt),
        labels=classes,
        random_state=salt,
    )
    kept = {
        "teachers": teachers,
        "encoder": encoder,
        "seed": salt,
        "digest": opened.records_digest(private.digests()),
    }
    shown = {
        "form": FORM,
        "id": secrets.token_hex(16),
        "ledger": ledger,
        "dataset": dataset,
        "estimator": type(estimator).__name__,
        "n_teachers": n_teachers,
        "classes": [
            c if isinstance(c, str | int) else str(c) for c in classes.tolist()
        ],
        "columns": {str(n): c.kind for n, c in schema.columns.items()},
        "openings": [],
    }
    folder.mkdir(parents=True, mode=0o700)
    sealed = opened.store.cipher.encrypt(pickle.dumps(kept), fixed_part(shown))
    write_for_owner(folder / SECRET, sealed)
    write_for_owner(folder / PUBLIC, json.dumps(shown, indent=2).encode())
    return Panel(folder, shown)
