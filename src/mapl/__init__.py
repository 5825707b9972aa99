"""mapl: any classifier, made differentially private.

The public names, loaded when they are first used so that ``import mapl`` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mapl.errors import (
        BudgetExceededError,
        CertificateError,
        LedgerCorruptedError,
        LedgerError,
        MaplError,
        MechanismStateError,
        ParameterError,
        PrivacyWarning,
        UnsupportedEventError,
    )
    from mapl.estimator import PrivateClassifier
    from mapl.ledger import Ledger
    from mapl.mechanisms import (
        Answer,
        ChargedDissent,
        ConfidentNoisyMax,
        NoisyMax,
        SoftAnswer,
        SparseVector,
        StableRelease,
        check_neighbours,
    )
    from mapl.votes import ABSTAIN, NO_VOTE, Votes

__version__ = "0.1.0.dev0"

__all__ = [
    "ABSTAIN",
    "NO_VOTE",
    "Answer",
    "BudgetExceededError",
    "CertificateError",
    "ChargedDissent",
    "ConfidentNoisyMax",
    "Ledger",
    "LedgerCorruptedError",
    "LedgerError",
    "MaplError",
    "MechanismStateError",
    "NoisyMax",
    "ParameterError",
    "PrivacyWarning",
    "PrivateClassifier",
    "SoftAnswer",
    "SparseVector",
    "StableRelease",
    "UnsupportedEventError",
    "Votes",
    "check_neighbours",
]

# Only modules that are needed are loaded: the ledger's are slow.
_MODULES = ("errors", "votes", "mechanisms", "estimator", "ledger")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'mapl' has no attribute {name!r}")
    homes = (import_module(f"mapl.{module}") for module in _MODULES)
    return next(getattr(home, name) for home in homes if hasattr(home, name))


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
