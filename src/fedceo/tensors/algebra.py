"""Product, transpose, identity, singular value decomposition and nuclear norm under the t-product."""

import torch
from torch import Tensor

from fedceo.tensors.checks import check_pair, check_tensor


def t_product(a: Tensor, b: Tensor) -> Tensor:
    """The t-product A * B = fold(bcirc(A) unfold(B)) of appendix A.2: (l, m, K) x (m, n, K) -> (l, n, K).

    A circular convolution over the client axis whose coefficients are matrices; under the DFT over that axis it is
    one matrix product per frequency.
    """
    check_pair(a, b)
    return to_clients(to_frequencies(a) @ to_frequencies(b), a.shape[2])


def t_transpose(a: Tensor) -> Tensor:
    """The conjugate transpose A^H: (d, h, K) -> (h, d, K).

    Every slice is transposed and the order of slices 2..K is reversed, so that (A * B)^H = B^H * A^H.
    """
    check_tensor(a, "a")
    return a.transpose(0, 1).roll(-1, dims=2).flip(2)


def t_identity(
    n: int, clients: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Tensor:
    """The tensor I of shape (n, n, K) with I * A = A: an identity matrix in the first slice, zeros in the others."""
    if n < 1 or clients < 1:
        raise ValueError(f"an identity needs n >= 1 and clients >= 1, got {n} and {clients}")
    identity = torch.zeros(n, n, clients, dtype=dtype, device=device)
    identity[:, :, 0] = torch.eye(n, dtype=dtype, device=device)
    return identity


def tsvd(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tensor singular value decomposition A = U * S * V^H (definition 2.5, appendix A.3).

    For A of shape (d, h, K): U is (d, d, K) and V (h, h, K), both orthogonal (U * U^H = U^H * U = I), and S is
    (d, h, K) with diagonal slices.
    """
    check_tensor(a, "a")
    d, h, clients = a.shape
    slices = to_frequencies(a)
    u, v = slices.new_empty(len(slices), d, d), slices.new_empty(len(slices), h, h)
    s = torch.zeros_like(slices)
    for part, matrices in real_and_complex(slices, clients):
        left, values, right = torch.linalg.svd(matrices, full_matrices=True)
        u[part], v[part] = left.to(u.dtype), right.mH.to(v.dtype)
        s[part].diagonal(dim1=-2, dim2=-1).copy_(values)
    return to_clients(u, clients), to_clients(s, clients), to_clients(v, clients)


def spectrum(w: Tensor) -> Tensor:
    """Singular values of every frequency, (K, min(d, h)), descending in each row.

    Row 0 is the client sum (K times the mean); rows i and K - i are equal because the tensor is real.
    """
    check_tensor(w, "w")
    clients = w.shape[2]
    slices = to_frequencies(w)
    half = w.new_empty(len(slices), min(w.shape[:2]))
    for part, matrices in real_and_complex(slices, clients):
        half[part] = torch.linalg.svdvals(matrices)
    return torch.cat([half, half[1 : clients - len(half) + 1].flip(0)])


def nuclear_norm(w: Tensor) -> Tensor:
    """The tensor nuclear norm ||W||_* = (1/K) sum over frequencies of the matrix nuclear norm (definition 2.4)."""
    return spectrum(w).sum() / w.shape[2]


def to_frequencies(w: Tensor) -> Tensor:
    """(d, h, K) real -> (floor(K/2)+1, d, h) complex: the DFT over clients, unnormalised as in appendix A.1.

    The frequencies left out are conjugates of those kept.
    """
    return torch.fft.rfft(w, dim=2).movedim(2, 0).contiguous()


def to_clients(slices: Tensor, clients: int) -> Tensor:
    """The inverse of to_frequencies."""
    return torch.fft.irfft(slices.movedim(0, 2), n=clients, dim=2)


def real_and_complex(slices: Tensor, clients: int) -> list[tuple[slice, Tensor]]:
    """The frequencies as two stacks of matrices, real and complex, each with its indices in `slices`.

    The slices of frequency 0 and, for even K, K/2 of a real tensor are real. They must stay so: a complex SVD may
    return factors with a phase there, which no real tensor has. Real arithmetic is also four times cheaper.
    """
    last = len(slices) - 1
    stop = last if clients % 2 == 0 else last + 1
    real = slice(0, last + 1, max(last, 1)) if clients % 2 == 0 else slice(0, 1)
    parts = [(real, slices[real].real.contiguous())]
    if stop > 1:
        parts.append((slice(1, stop), slices[1:stop]))
    return parts
