"""Privacy: mechanisms that clip and noise, accounting of who learns what, calibration of the noise.

accounting    account(Spec(...)) -> one row per observer, each with its epsilon and what it rests on
ledger        Ledger: what a run has spent; budget: when it must stop
audit         audit(simulation) -> whether the running code keeps its word
calibration   calibrate(target_epsilon, observer, spec) -> the noise multiplier
sampled_pld   the numbers behind the rows: privacy-loss distributions of sampled cohorts; gaussian: closed forms
"""
