"""The data sets known by name. Another one costs a file and a line here."""

from difflib import get_close_matches
from pathlib import Path

from fedceo.data.cifar10 import CIFAR10
from fedceo.data.dataset import DataSet
from fedceo.data.digits import DIGITS
from fedceo.data.emnist import EMNIST_LETTERS
from fedceo.data.femnist import FEMNIST, FEMNIST_LETTERS
from fedceo.data.mnist import FASHION_MNIST, MNIST
from fedceo.data.sent140 import SENT140
from fedceo.data.source import Source
from fedceo.errors import UsageError

DATASETS: dict[str, DataSet] = {
    data.name: data
    for data in (CIFAR10, DIGITS, EMNIST_LETTERS, FASHION_MNIST, FEMNIST, FEMNIST_LETTERS, MNIST, SENT140)
}

DESCRIPTIONS: dict[str, str] = {name: data.description for name, data in DATASETS.items()}


def known(name: str) -> DataSet:
    """A registered data set; an unknown name is answered with the nearest known one."""
    if name not in DATASETS:
        near = get_close_matches(name.lower(), DATASETS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(
            f"data.name: unknown data set {name!r}; {hint}known are {', '.join(DATASETS)}; records of your "
            "own come from data.path, or in Python as data= of fedceo.run and fedceo.resume"
        )
    return DATASETS[name]


def load_source(name: str, root: Path | None) -> Source:
    """What a registered data set holds; root is the folder of all downloaded ones."""
    return known(name).load(root)
