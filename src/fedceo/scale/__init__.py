"""Many machines: a cohort's training and smoothing on Ray workers, with the answer of one machine.

shares.py       which clients train together, and who gets them next: no Ray in it
cluster.py      which Ray to use, what it must have, and the lines that say why it will not do
pool.py         processes that take shares as they become free; one that dies is replaced and its share given again
worker.py       what runs in such a process: the trainer that one machine would use
remote.py       the trainer and the truncated t-SVD as the rest of the house knows them, done by a pool

Only pool.py and cluster.py import Ray, and nothing here is imported unless it is asked for.
"""
