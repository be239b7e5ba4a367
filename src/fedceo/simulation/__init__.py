"""Simulated federations: one round, the loop over rounds, evaluation, and run folders that survive a kill."""
