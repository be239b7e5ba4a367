"""EMNIST letters (Cohen et al., 2017) from the authors' idx files, alone or in their gzip.zip."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from fedceo.data.dataset import DataSet, Download
from fedceo.data.files import data_folder, packed_or_not, read_archive, read_file
from fedceo.data.idx import decode_pair
from fedceo.data.registry import DATASETS
from fedceo.data.source import Source

FILES = tuple(
    f"emnist-letters-{part}-{kind}-ubyte" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")
)


@DATASETS.register(
    "emnist-letters",
    "145,600 handwritten letters, 28x28, 26 classes; the idx files or the authors' gzip.zip in emnist/",
)
class EMNISTLetters(DataSet):
    """124,800 letters to train on and 20,800 to test on, upper and lower case together, uint8 (records, 1, 28, 28).

    The files hold every image transposed and labels from 1 to 26; here they are upright and 0 to 25.
    """

    where = f"emnist/ with gzip.zip, or with {', '.join(FILES)}, each gzip or unpacked"
    published: ClassVar = {"gzip.zip": "58c8d27c78d21e728a6bc7b3cc06412e"}
    downloads = (
        Download(
            "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            "emnist/gzip.zip",
            "58c8d27c78d21e728a6bc7b3cc06412e",
        ),
    )

    def find(self, root: Path | None) -> list[Path]:
        folder = data_folder(root, "emnist")
        if (folder / "gzip.zip").is_file():
            return [folder / "gzip.zip"]
        return [packed_or_not(folder / name) for name in FILES]

    def read(self, files: Sequence[Path]) -> Source:
        if files[0].suffix == ".zip":
            contents = read_archive(files[0], [f"gzip/{name}.gz" for name in FILES])
        else:
            contents = [read_file(path) for path in files]
        (x, y), (test_x, test_y) = (decode_pair(contents[at : at + 2], classes=26, first=1) for at in (0, 2))
        x, test_x = (images.transpose(2, 3).contiguous() for images in (x, test_x))
        return Source(self.name, x, y, test_x, test_y, classes=26, mean=(0.1307,), std=(0.3081,))
