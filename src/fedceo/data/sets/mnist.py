"""MNIST (LeCun, Cortes, Burges) from its authors' idx files."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from fedceo.data.dataset import DataSet, Download
from fedceo.data.files import data_folder, packed_or_not, read_file
from fedceo.data.idx import decode_pair
from fedceo.data.registry import DATASETS
from fedceo.data.source import Source

FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
PACKED_MD5 = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
"""Published checksums of the files as they are sent, gzip."""


@DATASETS.register("mnist", "70,000 handwritten digits, 28x28, 10 classes; the idx files, gzip or plain, in mnist/")
class MNIST(DataSet):
    """60,000 images to train on and 10,000 to test on, uint8 (records, 1, 28, 28)."""

    where = f"mnist/ with {', '.join(FILES)}, each gzip or unpacked"
    published: ClassVar = {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    }
    downloads = tuple(
        Download(f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz", f"mnist/{name}.gz", md5)
        for name, md5 in zip(FILES, PACKED_MD5, strict=True)
    )
    mean, std = 0.1307, 0.3081

    def find(self, root: Path | None) -> list[Path]:
        folder = data_folder(root, self.name)
        return [packed_or_not(folder / name) for name in FILES]

    def read(self, files: Sequence[Path]) -> Source:
        contents = [read_file(path) for path in files]
        (x, y), (test_x, test_y) = decode_pair(contents[:2], classes=10), decode_pair(contents[2:], classes=10)
        return Source(self.name, x, y, test_x, test_y, classes=10, mean=(self.mean,), std=(self.std,))
