"""The same federated rounds by fedceo and by its peers, each in a process and an environment of its own.

work.py     what every contender does, as plain data
envs.py     the peers' virtual environments
vendor.py   the peers in one file, for a machine with a GPU and no network
race.py     prepares the work, starts the contenders, collects times and compares the weights they end with
with_*.py   one contender each
"""
