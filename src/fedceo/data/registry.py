"""The registry of data sets; each file of `data/sets` registers its own.

    @DATASETS.register("digits", "1,797 handwritten digits")
    class Digits(DataSet): ...

Another package registers its data sets in a module that an entry point of the group `fedceo.datasets` names.
"""

from pathlib import Path

from fedceo.data.dataset import DataSet
from fedceo.data.source import Source
from fedceo.errors import UsageError
from fedceo.experiment.registry import Registry

DATASETS: Registry[type[DataSet]] = Registry("data set", "fedceo.data.sets", group="fedceo.datasets")


def known(name: str) -> DataSet:
    """A registered data set; an unknown name is answered with the nearest known one."""
    if name not in DATASETS:
        raise UsageError(
            f"data.name: {DATASETS.unknown(name)}; records of your own come from data.path, or in Python as data= of "
            "fedceo.run and fedceo.resume"
        )
    return DATASETS[name](name)


def load_source(name: str, root: Path | None) -> Source:
    """The records of a registered data set; root is the folder of all downloaded ones."""
    return known(name).load(root)
