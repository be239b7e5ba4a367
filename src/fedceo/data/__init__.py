"""Federations: clients' records and a public test set, from registered data sets, files or arrays of the user's own."""

from fedceo.data.arrays import from_arrays
from fedceo.data.build import build_federation, data_root, federate
from fedceo.data.federation import Federation
from fedceo.data.picture import draw_partition, label_counts
from fedceo.data.registry import DATASETS, known, load_source
from fedceo.data.source import Source
from fedceo.data.tables import from_frame
from fedceo.data.texts import from_texts

__all__ = [
    "DATASETS",
    "Federation",
    "Source",
    "build_federation",
    "data_root",
    "draw_partition",
    "federate",
    "from_arrays",
    "from_frame",
    "from_texts",
    "known",
    "label_counts",
    "load_source",
]
