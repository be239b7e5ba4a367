"""The loop over rounds, evaluation, and run folders that survive."""
