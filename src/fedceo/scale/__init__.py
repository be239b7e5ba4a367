"""Many machines: a cohort's training and smoothing on Ray workers, with the answer of one machine.

scheduling.py   how a cohort is cut into tasks, and which task is handed out next: no Ray in it
cluster.py      the Ray that a run uses, and the errors for one that will not do
pool.py         processes that take tasks as they become free; one that dies is replaced and its task handed out again
worker.py       the code in such a process: the trainer that one machine would use
remote.py       a trainer and a truncated t-SVD, with the interface of the local ones, that a pool computes

Only pool.py and cluster.py import Ray, and nothing here is imported unless it is asked for.
"""
