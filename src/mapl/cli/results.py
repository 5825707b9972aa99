"""What ``mapl learn`` prints: what it did, or what it would do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mapl.errors import BudgetExceededError, ParameterError


def foreseen(model: Any, points: Any, classes: list[str]) -> dict[str, Any]:
    """Return what a fit would do: from public values, for nothing."""
    if not classes:
        raise ParameterError("--dry-run needs --classes: it reads no private record.")
    setting = model.foresee(X_public=points)
    found = {
        "would_cost_epsilon": model.epsilon,
        "delta": model.delta,
        "method": model.method_,
        "teachers": model.n_teachers_ if setting.n_teachers else 0,
        "public_points": model.n_public_,
        "released": False,
    }
    left = epsilon_left(model)
    if left:
        after = left["epsilon_left"] - model.epsilon
        left["epsilon_left_after"] = round(after, 6)
        if after < 0:
            raise BudgetExceededError(
                f"Budget {model.dataset!r} exceeded: epsilon {left['epsilon_left']:g} "
                f"is left, this fit needs {model.epsilon:g}. It would be refused."
            )
    return found | left


def epsilon_left(model: Any) -> dict[str, float]:
    """Return what is left in the ledger, if there is one."""
    if model.ledger is None:
        return {}
    from mapl.ledger.ledger import Ledger

    balance = Ledger(model.ledger).balance(model.dataset)
    return {"epsilon_left": round(balance.epsilon_limit - balance.epsilon_spent, 6)}


def summary_of(fitted: Any, signed: dict[str, Any], out: Path) -> dict[str, Any]:
    """Return what is printed; its keys are those of ``--json``."""
    from mapl.privacy.votes import ABSTAIN

    answered = int((fitted.public_labels_ != ABSTAIN).sum())
    n_points = len(fitted.public_labels_)
    asked = {
        "public_points": n_points,
        "answered": answered,
        "abstained": n_points - answered,
    }
    if hasattr(fitted, "made_up_points_"):
        asked = {"public_points": fitted.n_public_, "made_up_records": n_points}
    return {
        "epsilon": signed["epsilon"],
        "delta": signed["delta"],
        "paid_before": fitted.paid_before_,
        "method": fitted.method_,
        "teachers": fitted.n_teachers_,
        **asked,
        **epsilon_left(fitted),
        "guarantee": signed["guarantee"],
        "folder": str(out),
    }
