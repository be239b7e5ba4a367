"""Tensors that hypothesis draws: every shape and every kind of spectrum that could trip a fast path."""

import torch
from hypothesis import strategies as st
from torch import Tensor

KINDS = ("noise", "signal and noise", "low rank", "repeated", "graded", "equal clients", "zero")


def make(kind: str, shape: tuple[int, int, int], dtype: torch.dtype, seed: int) -> Tensor:
    """A tensor of the kind named, the same for the same arguments."""
    d, h, clients = shape
    rng = torch.Generator().manual_seed(seed)
    noise = torch.randn(shape, generator=rng, dtype=torch.float64)
    if kind == "signal and noise":  # what FedCEO meets: a common model under independent noise
        noise = 0.1 * noise + torch.randn(d, h, 1, generator=rng, dtype=torch.float64)
    elif kind == "low rank":
        left, right = (torch.randn(n, 1, clients, generator=rng, dtype=torch.float64) for n in (d, h))
        noise = torch.einsum("irk,jrk->ijk", left, right)
    elif kind == "repeated":  # every slice of the spectrum is the same matrix with all singular values 1
        q, _ = torch.linalg.qr(torch.randn(max(d, h), min(d, h), generator=rng, dtype=torch.float64))
        noise = torch.zeros(shape, dtype=torch.float64)
        noise[:, :, 0] = q if d >= h else q.T
    elif kind == "graded":  # singular values over twelve orders of magnitude
        noise = noise * torch.logspace(0, -12, h, dtype=torch.float64).view(1, h, 1)
    elif kind == "equal clients":
        noise = noise[:, :, :1].expand(shape).clone()
    elif kind == "zero":
        noise = torch.zeros(shape, dtype=torch.float64)
    return noise.to(dtype)


sizes = st.sampled_from([1, 2, 3, 5, 8, 17])
clients = st.sampled_from([1, 2, 3, 4, 5, 10])
dtypes = st.sampled_from([torch.float32, torch.float64])
seeds = st.integers(0, 2**31 - 1)


@st.composite
def tensors(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS, dtype: torch.dtype | None = None) -> Tensor:
    shape = (draw(sizes), draw(sizes), draw(clients))
    return make(draw(st.sampled_from(kinds)), shape, dtype or draw(dtypes), draw(seeds))
