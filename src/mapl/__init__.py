"""mapl: any classifier, made differentially private.

Public names are loaded when they are first used, so that ``import mapl`` is quick.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Each public name with its module.
_HOMES = {
    "ABSTAIN": "mapl.privacy.votes",
    "NO_VOTE": "mapl.privacy.votes",
    "Answer": "mapl.privacy.answers",
    "Budget": "mapl.release.account",
    "BudgetExceededError": "mapl.errors",
    "CertificateError": "mapl.errors",
    "ChargedDissent": "mapl.privacy.charged_dissent",
    "ConfidentNoisyMax": "mapl.privacy.noisy_max",
    "Ledger": "mapl.ledger.ledger",
    "LedgerCorruptedError": "mapl.errors",
    "LedgerError": "mapl.errors",
    "MaplError": "mapl.errors",
    "MechanismStateError": "mapl.errors",
    "NoisyMax": "mapl.privacy.noisy_max",
    "Panel": "mapl.online.panel",
    "ParameterError": "mapl.errors",
    "PrivacyWarning": "mapl.errors",
    "PrivateClassifier": "mapl.estimator",
    "Query": "mapl.records.sources",
    "NotOpenError": "mapl.errors",
    "RequestConflictError": "mapl.errors",
    "SoftAnswer": "mapl.privacy.answers",
    "SparseVector": "mapl.privacy.sparse_vector",
    "StableRelease": "mapl.privacy.stable_release",
    "UnsupportedEventError": "mapl.errors",
    "Votes": "mapl.privacy.votes",
    "check_neighbours": "mapl.privacy.stable_release",
    "load": "mapl.publish.loading",
    "sweep": "mapl.trials",
}
_MODULES = {
    "accounting": "mapl.privacy.accounting",
    "certificate": "mapl.publish.certificate",
    "noise": "mapl.privacy.noise",
    "planner": "mapl.planning",
}

__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mapl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
