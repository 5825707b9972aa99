"""What identifies a fit: by it a ledger knows the same fit again. All is public."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from mapl.learners import learner_digest, seed_of
from mapl.planning.choice import REQUESTS
from mapl.records.keys import record_keys
from mapl.records.schema import Schema
from mapl.records.table import Table
from mapl.release.account import Account, open_account


def open_fit_account(model: Any, private: Any, table: Table) -> Account:
    """Open the account of a fit; ``table`` has the public points."""
    digest = b"" if model.ledger is None else record_keys(table, None).tobytes()
    return open_account(
        epsilon=float(model.epsilon),
        delta=float(model.delta),
        ledger=model.ledger,
        dataset=model.dataset,
        request=request_key(model, table.schema).encode() + sha256(digest).digest(),
        note=f"PrivateClassifier, {model.method_}{_learner(model)}, "
        f"{model.n_public_} public points",
        seed=seed_of(model._seed),
        keys=private.digests,
        assignment=lambda seed: private.assignment(
            max(1, model.n_teachers_), salt=seed
        ),
        quiet=model.on_invalid == "drop",
    )


def _learner(model: Any) -> str:
    """Say who teaches; nothing where nobody does."""
    if model.method_ == "moments":
        return ""
    name = type(model._estimator()).__name__
    return f", {model.n_teachers_} teachers ({name})"


def request_key(model: Any, schema: Schema) -> str:
    """Return what decides the answers, and identifies stored jobs: in another form the
    same fit would be charged again. The student is not part of it.
    """
    names = ("n_teachers_", "mechanism", "privacy", "_grouped")
    params = {name: getattr(model, name) for name in names}
    if model.method_ != "votes":
        params |= {"method": REQUESTS[model.method_], "n_records": model.n_records}
    params |= {"epsilon": float(model.epsilon), "delta": float(model.delta)}
    if model.plan is not None:
        params["plan"] = (model.plan.name, model.plan.event.to_json())
    if model._outline is not None:
        params["schema"] = json.dumps(model._outline.to_json())
    learner = None
    if model.method_ != "moments":
        learner = learner_digest(model._estimator())
    return repr(
        (params, model._seed, model.classes_.tolist(), learner, schema.describe())
    )
