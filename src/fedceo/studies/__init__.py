"""Studies of many runs: sweeps over experiment files, grids and seeds, tuning with equal budgets, and their tables."""
