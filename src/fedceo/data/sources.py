"""The data sets known by name. Another one costs a file with a loader and a line here."""

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from fedceo.data.cifar10 import load_cifar10
from fedceo.data.digits import load_digits
from fedceo.data.mnist import load_mnist
from fedceo.data.source import Source
from fedceo.errors import UsageError

DATASETS: dict[str, Callable[[Path | None], Source]] = {
    "cifar10": load_cifar10,
    "digits": load_digits,
    "mnist": load_mnist,
}
"""Name to loader, which is given the folder that holds downloaded data sets."""

DESCRIPTIONS: dict[str, str] = {
    "cifar10": "60,000 colour photographs, 32x32, 10 classes; the binary version in cifar-10-batches-bin/",
    "digits": "1,797 handwritten digits, 8x8, 10 classes; comes with scikit-learn, no download",
    "mnist": "70,000 handwritten digits, 28x28, 10 classes; the idx files, gzip or plain, in mnist/",
}


def load_source(name: str, root: Path | None) -> Source:
    """A registered data set; an unknown name is answered with the nearest known one."""
    if name not in DATASETS:
        near = get_close_matches(name.lower(), DATASETS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"data.name: unknown data set {name!r}; {hint}known are {', '.join(DATASETS)}")
    return DATASETS[name](root)
