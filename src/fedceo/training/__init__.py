"""How a cohort trains: start weights and the clients' records in, trained weights out.

schedule.py     every random choice of a run, as data
work.py         what a client does in a round, and what comes back
loop.py         one client after another: any model, any device; the oracle
batched.py      the whole cohort as one program
per_example.py  record-level clipping and noise inside local steps
engine.py       which of the two runs: a fixed rule
"""
