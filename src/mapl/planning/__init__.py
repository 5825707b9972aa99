"""What to expect, and which settings to take: from public numbers only.

The paper's theorems (`mapl.planning.theorems`) are functions of this package, too.
"""

from typing import Any

from mapl.planning import theorems
from mapl.planning.plan import Plan, large_delta_message, mostly_noise_message, plan
from mapl.planning.settings import Setting, dissents_for, setting_for, teachers_for
from mapl.publish.meaning import what_epsilon_means

__all__ = [
    "Plan",
    "Setting",
    "dissents_for",
    "large_delta_message",
    "mostly_noise_message",
    "plan",
    "setting_for",
    "teachers_for",
    "what_epsilon_means",
]


def __getattr__(name: str) -> Any:
    found = getattr(theorems, name, None)
    if getattr(found, "__module__", None) != theorems.__name__:
        raise AttributeError(f"module 'mapl.planning' has no attribute {name!r}")
    return found
