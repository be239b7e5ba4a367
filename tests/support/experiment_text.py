"""The text of a small experiment file, for tests that speak to commands."""

FILE = """
seed = 0
[data]
name = "digits"
clients = 20
[cohort]
size = 5
[train]
rounds = 4
local_epochs = 1
batch_size = 16
[privacy]
mechanism = "central"
noise_multiplier = 1.0
[method]
name = "fedavg"
[evaluation]
every = 2
[checkpoint]
every = 2
"""
