"""How a cohort trains: start weights and the clients' records in, trained weights out.

schedule.py     every random choice of a run, as data
draws.py        the same choices made on a GPU
noise.py        the noise of the record regime
work.py         what a client does in a round, and what comes back
loop.py         one client after another: any model, any device; the oracle
per_example.py  record-level clipping and noise inside local steps
batched.py      the whole cohort as one program
cohort.py       what that program works on: K models as one matrix, their batches
chain.py        models that are a chain of known layers; blocks.py: those layers, backward passes written out
functional.py   any other model, through torch.func
captured.py     a GPU's steps, recorded once and replayed
fused.py        layers and step on a GPU; kernels.py, row_kernels.py: what runs there
engine.py       which of loop and batch runs: a fixed rule
"""
