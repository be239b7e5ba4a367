"""Privacy: mechanisms that clip and noise, accounting of who learns what, calibration of the noise.

accounting    account(Spec(...)) -> one row per observer, each with its epsilon and what it rests on
ledger        Ledger: what a run has spent; budget: when it must stop
audit         audit(simulation) -> whether the running code keeps its word
calibration   calibrate(target_epsilon, observer, spec) -> the noise multiplier
sampled_pld   the numbers behind the rows: privacy-loss distributions of sampled cohorts; gaussian: closed forms
"""

from typing import TYPE_CHECKING

from fedceo.lazy import on_first_use

if TYPE_CHECKING:
    from fedceo.accounting.calibration import calibrate
    from fedceo.accounting.plan import Row, Spec, default_delta
    from fedceo.accounting.rows import account

__all__ = ["Row", "Spec", "account", "calibrate", "default_delta"]

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "fedceo.accounting.rows": ("account",),
        "fedceo.accounting.calibration": ("calibrate",),
        "fedceo.accounting.plan": ("Row", "Spec", "default_delta"),
    },
)
