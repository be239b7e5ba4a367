"""MNIST (LeCun, Cortes, Burges) and Fashion-MNIST (Xiao, Rasul, Vollgraf, 2017) from their authors' idx files."""

from collections.abc import Sequence
from pathlib import Path

from fedceo.data.dataset import DataSet, Download
from fedceo.data.files import data_folder, packed_or_not, read_file
from fedceo.data.idx import decode_pair
from fedceo.data.source import Source

FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts it."""


def _find(root: Path | None) -> list[Path]:
    folder = data_folder(root, "mnist")
    return [packed_or_not(folder / name) for name in FILES]


def _find_fashion(root: Path | None) -> list[Path]:
    elsewhere = DEBIAN.is_dir() and (root is None or not (root / "fashion-mnist").is_dir())
    folder = DEBIAN if elsewhere else data_folder(root, "fashion-mnist")
    return [packed_or_not(folder / name) for name in FILES]


def _read(files: Sequence[Path], name: str, mean: float, std: float) -> Source:
    """60,000 images to train on and 10,000 to test on, uint8 (records, 1, 28, 28)."""
    contents = [read_file(path) for path in files]
    (x, y), (test_x, test_y) = decode_pair(contents[:2], classes=10), decode_pair(contents[2:], classes=10)
    return Source(name, x, y, test_x, test_y, classes=10, mean=(mean,), std=(std,))


MNIST = DataSet(
    "mnist",
    "70,000 handwritten digits, 28x28, 10 classes; the idx files, gzip or plain, in mnist/",
    where=f"mnist/ with {', '.join(FILES)}, each gzip or unpacked",
    find=_find,
    read=lambda files: _read(files, "mnist", 0.1307, 0.3081),
    published={
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    downloads=tuple(
        Download(f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz", f"mnist/{name}.gz", md5)
        for name, md5 in zip(
            FILES,
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
            strict=True,
        )
    ),
)

FASHION_MNIST = DataSet(
    "fashion-mnist",
    "70,000 pictures of clothes, 28x28, 10 classes; the idx files in fashion-mnist/, or Debian's package",
    where=f"fashion-mnist/ with {', '.join(FILES)}, each gzip or unpacked; or Debian's package dataset-fashion-mnist",
    find=_find_fashion,
    read=lambda files: _read(files, "fashion-mnist", 0.2860, 0.3530),
    published={
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
    downloads=tuple(
        Download(f"{FASHION}/{name}.gz", f"fashion-mnist/{name}.gz", md5)
        for name, md5 in zip(
            FILES,
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
            strict=True,
        )
    ),
)
