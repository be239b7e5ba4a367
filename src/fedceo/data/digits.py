"""scikit-learn's handwritten digits: 1,797 images of 8x8 pixels in 17 greys (Alpaydin and Kaynak, 1998)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedceo.data.dataset import DataSet
from fedceo.data.source import Source, hold_out


def _read(files: Sequence[Path] = ()) -> Source:
    """Values from 0 to 1; the data comes with scikit-learn, so no file is needed."""
    from sklearn import datasets  # here, because it is slow to import

    bunch = datasets.load_digits()
    x = torch.from_numpy((bunch.images / 16).astype(np.float32)).unsqueeze(1)
    y = torch.from_numpy(bunch.target.astype(np.int64))
    train, test = hold_out(len(y))
    return Source("digits", x[train], y[train], x[test], y[test], classes=10)


DIGITS = DataSet(
    "digits",
    "1,797 handwritten digits, 8x8, 10 classes; comes with scikit-learn, no download",
    where="nowhere: it comes with scikit-learn",
    find=lambda root: [],
    read=_read,
)
