"""pfl-research's simulator in several processes on one GPU.

    python -m torch.distributed.run --nproc-per-node P -m peers.with_pfl_sharing WORK OUT

pfl's authors run several processes on a GPU, but pfl 0.6 gives each process a GPU of its own, and NCCL refuses to share
one. Here every process is told that it is the first one of its machine, and gloo adds up the updates.
"""

import os
import sys

import torch

if __name__ == "__main__":
    os.environ["LOCAL_RANK"] = "0"
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # or gloo asks the network for the address of this machine's name
    start_group = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda backend: start_group(backend="gloo")

    from peers import with_pfl  # not before, since pfl starts the group when it is imported

    with_pfl.main(*sys.argv[1:])
