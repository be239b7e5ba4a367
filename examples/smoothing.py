"""Ten clients hold the same low-rank model under independent noise: what averaging and the truncated t-SVD recover.

    python examples/smoothing.py

Prints the relative error of the clients' models and of their mean, as received and after smoothing at several
thresholds, and writes the same numbers to runs/smoothing/result.json.
"""

import json
from pathlib import Path

import torch

from fedceo.tensors import spectrum, truncated_tsvd

CLIENTS, ROWS, COLUMNS, RANK, NOISE = 10, 200, 64, 5, 1.0


def main() -> None:
    rng = torch.Generator().manual_seed(0)
    left = torch.randn(ROWS, RANK, generator=rng)
    model = (left @ torch.randn(RANK, COLUMNS, generator=rng)).unsqueeze(2)
    received = model + NOISE * torch.randn(ROWS, COLUMNS, CLIENTS, generator=rng)
    noise_edge = float(spectrum(received)[1:].max())

    rows = []
    for fraction in (0.0, 0.25, 0.5, 0.75, 1.0, 1.25):
        smoothed = truncated_tsvd(received, fraction * noise_edge)
        own = ((smoothed - model).norm() / model.expand_as(smoothed).norm()).item()
        mean = ((smoothed.mean(2, keepdim=True) - model).norm() / model.norm()).item()
        rows.append({"threshold_over_noise_edge": fraction, "error_own_model": own, "error_mean": mean})
    print("threshold / noise edge   error of a client's own model   error of the mean")
    for row in rows:
        print("{:>22.2f}{:>32.3f}{:>20.3f}".format(*row.values()))

    out = Path("runs/smoothing/result.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(rows, indent=2) + "\n")
    print(f"results: {out}")


if __name__ == "__main__":
    main()
