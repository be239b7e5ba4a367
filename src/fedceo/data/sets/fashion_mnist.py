"""Fashion-MNIST (Xiao, Rasul, Vollgraf, 2017) from its authors' idx files, which have the names of MNIST's."""

from pathlib import Path
from typing import ClassVar

from fedceo.data.dataset import Download
from fedceo.data.files import packed_or_not
from fedceo.data.registry import DATASETS
from fedceo.data.sets.mnist import FILES, MNIST

ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
"""The folder into which Debian's package dataset-fashion-mnist puts the files."""

PACKED_MD5 = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
"""Published checksums of the files as they are sent, gzip."""


@DATASETS.register(
    "fashion-mnist",
    "70,000 pictures of clothes, 28x28, 10 classes; the idx files in fashion-mnist/, or Debian's package",
)
class FashionMNIST(MNIST):
    """60,000 images to train on and 10,000 to test on, uint8 (records, 1, 28, 28)."""

    where = f"fashion-mnist/ with {', '.join(FILES)}, each gzip or unpacked; or Debian's package dataset-fashion-mnist"
    published: ClassVar = {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    }
    downloads = tuple(
        Download(f"{ADDRESS}/{name}.gz", f"fashion-mnist/{name}.gz", md5)
        for name, md5 in zip(FILES, PACKED_MD5, strict=True)
    )
    mean, std = 0.2860, 0.3530

    def find(self, root: Path | None) -> list[Path]:
        if DEBIAN.is_dir() and (root is None or not (root / self.name).is_dir()):
            return [packed_or_not(DEBIAN / name) for name in FILES]
        return super().find(root)
