"""Many runs as one question: sweeps over experiment files, seeds and grids, tuning with equal budgets, their tables."""
