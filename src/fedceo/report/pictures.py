"""Figures of records: their partition over clients, and an attacker's reconstructions of them."""

import numpy as np

from fedceo.attacks.study import Study
from fedceo.data import Federation, label_counts
from fedceo.data.picture import partition_figure
from fedceo.report.style import Drawing, styled


@styled
def partition(federation: Federation) -> Drawing:
    """A figure of the number of training records of each label that every client holds.

    Returns:
        data["counts"], (clients, classes).
    """
    counts = label_counts(federation).numpy()
    sizes, labels = counts.sum(1), (counts > 0).sum(1)
    caption = (
        f"{federation.name}: training records by client and label. {len(counts)} clients hold {sizes.min():,} to "
        f"{sizes.max():,} records of {labels.min()} to {labels.max()} of {counts.shape[1]} labels."
    )
    return Drawing(partition_figure(federation), {"counts": counts}, caption)


@styled
def attack_grid(study: Study, row: str = "attack") -> Drawing:
    """A figure of the truth and the reconstructions from the start to the end, of the first 8 records.

    Args:
        study: a study of `fedceo.attacks.run_study`.
        row: attack or control.

    Returns:
        data["truth"], (n, channels, height, width), data["steps"], (steps,), and data["found"], (steps, n, ...).
    """
    path = study.paths[row]
    about = next(each for each in study.result["rows"] if each["name"] == row)
    data = {
        "truth": study.truth.cpu().numpy(),
        "steps": np.array(list(path)),
        "found": np.stack([pictures.cpu().numpy() for pictures in path.values()]),
    }
    caption = (
        f"{study.result['attack']} on {study.result['data']}, {row}: {about['holds']}. Median PSNR "
        f"{about['psnr']['value']:.1f} dB, {about['over_constant']['value']:+.1f} dB over the best single colour."
    )
    return Drawing(study.grid(row), data, caption)
