"""scikit-learn's handwritten digits: 1,797 images of 8x8 pixels in 17 greys (Alpaydin and Kaynak, 1998)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedceo.data.dataset import DataSet
from fedceo.data.registry import DATASETS
from fedceo.data.source import Source, hold_out


@DATASETS.register("digits", "1,797 handwritten digits, 8x8, 10 classes; comes with scikit-learn, no download")
class Digits(DataSet):
    """Pixels as float32 from 0 to 1, (records, 1, 8, 8); a fixed fifth of the images is the test set."""

    where = "nowhere: it comes with scikit-learn"

    def find(self, root: Path | None) -> list[Path]:
        return []

    def read(self, files: Sequence[Path]) -> Source:
        from sklearn import datasets  # here, because it is slow to import

        bunch = datasets.load_digits()
        x = torch.from_numpy((bunch.images / 16).astype(np.float32)).unsqueeze(1)
        y = torch.from_numpy(bunch.target.astype(np.int64))
        train, test = hold_out(len(y))
        return Source(self.name, x[train], y[train], x[test], y[test], classes=10)
