"""A second, naive implementation of the t-product algebra: definitions written out, float64, no shortcuts."""

import numpy as np
import torch
from torch import Tensor


def block_circulant(a: Tensor) -> Tensor:
    """bcirc(A) of appendix A.2: block (i, j) is slice (i - j) mod K."""
    clients = a.shape[2]
    return torch.cat([torch.cat([a[:, :, (i - j) % clients] for j in range(clients)], 1) for i in range(clients)])


def product(a: Tensor, b: Tensor) -> Tensor:
    clients = a.shape[2]
    tall = block_circulant(a) @ torch.cat([b[:, :, k] for k in range(clients)])
    return torch.stack(tall.chunk(clients), dim=2)


def soft_threshold(matrix: np.ndarray, tau: float) -> np.ndarray:
    u, s, vh = np.linalg.svd(matrix, full_matrices=False)
    return (u * np.maximum(s - tau, 0)) @ vh


def truncated_tsvd(w: Tensor, threshold: float | Tensor) -> Tensor:
    """Algorithm 4 of appendix A.4, all K slices, full float64."""
    clients = w.shape[2]
    taus = torch.as_tensor(threshold, dtype=torch.float64).expand(clients).tolist()
    slices = np.fft.fft(w.double().numpy(), axis=2)
    out = np.stack([soft_threshold(slices[:, :, i], taus[i]) for i in range(clients)], axis=2)
    return torch.from_numpy(np.fft.ifft(out, axis=2).real)


def spectrum(w: Tensor) -> Tensor:
    slices = np.fft.fft(w.double().numpy(), axis=2)
    return torch.from_numpy(np.stack([np.linalg.svd(slices[:, :, i], compute_uv=False) for i in range(w.shape[2])]))


def error(got: Tensor, expected: Tensor, scale: Tensor) -> float:
    """||got - expected||_F / ||scale||_F."""
    return float(torch.linalg.vector_norm(got.double() - expected.double()) / torch.linalg.vector_norm(scale.double()))
