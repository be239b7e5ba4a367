"""Privacy: mechanisms that clip and noise, accounting of who learns what, calibration of the noise.

accounting    account(Spec(...)) -> one row per observer, each with its epsilon and what it rests on
ledger        Ledger: what a run has spent; budget: when it must stop
audit         audit(simulation) -> whether the running code keeps its word
calibration   calibrate(target_epsilon, observer, spec) -> the noise multiplier
sampled_pld   the numbers behind the rows: privacy-loss distributions of sampled cohorts; gaussian: closed forms
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedceo.privacy.accounting import account
    from fedceo.privacy.calibration import calibrate
    from fedceo.privacy.spec import Row, Spec, default_delta

__all__ = ["Row", "Spec", "account", "calibrate", "default_delta"]

_HOMES = {
    "fedceo.privacy.accounting": ("account",),
    "fedceo.privacy.calibration": ("calibrate",),
    "fedceo.privacy.spec": ("Row", "Spec", "default_delta"),
}


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used: the accountant's libraries take a second to load."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
