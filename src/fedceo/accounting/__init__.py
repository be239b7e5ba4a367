"""Privacy accounting: who learns what from a run, and how much noise an epsilon needs; knows neither torch nor methods.

plan          Plan, Realised and RecordSteps: the question
rows          account(plan, realised) -> one row per observer, each with its epsilon and what it rests on
observers     one class per view: what an observer sees, and the epsilon that follows
released      averages as someone sees them, made of rounds; participations: how often a client takes part; caps
pld           the numbers behind amplified rows: profiles of sampled cohorts, their privacy losses, their composition
gaussian      the numbers behind all other rows: closed forms
calibration   calibrate(target_epsilon, observer, plan) -> the noise multiplier
ledger        Ledger: what a run has spent; budget: when it must stop
reasons       the words of rows

docs/derivations.md proves what the numbers rest on; docstrings cite it as D1, D2, ...
"""

from typing import TYPE_CHECKING

from fedceo.lazy import on_first_use

if TYPE_CHECKING:
    from fedceo.accounting.calibration import calibrate
    from fedceo.accounting.plan import NoiseSite, Plan, Realised, RecordSteps, default_delta
    from fedceo.accounting.rows import Row, account

__all__ = ["NoiseSite", "Plan", "Realised", "RecordSteps", "Row", "account", "calibrate", "default_delta"]

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "fedceo.accounting.calibration": ("calibrate",),
        "fedceo.accounting.plan": ("NoiseSite", "Plan", "Realised", "RecordSteps", "default_delta"),
        "fedceo.accounting.rows": ("Row", "account"),
    },
)
