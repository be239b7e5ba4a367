"""How a cohort trains: start weights and the clients' records in, trained weights out.

work.py         the contract: what a client does in a round (Work), and what a trainer gives back
terms.py        terms beside the gradient of the loss; a new one is a field of Work and an entry here
context.py      the model, the records, the schedule and the device that a trainer works with
schedule.py     every random choice of a run, as data
draws.py        the same choices made on a GPU
noise.py        the noise of record-level privacy, step by step
per_example.py  clipping of single records' gradients
loop.py         one client after another: any model, any device; the oracle
batched/        the whole cohort as one program, and the table of all buffers in memory
cuda/           the same on a GPU: captured steps and kernels
engine.py       the rule that chooses between loop and batched

A record is a datum. Its index is its position among the federation's records. Filling is what pads a batch to the size
of others: it counts for nothing.
"""
