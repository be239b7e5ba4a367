"""The features of a model whose head alone is trained: computed once for each record, before any training.

Whoever trains or measures a model calls `on_features` first and goes on with what it returns: every trainer, evaluation
and audit then sees a small model on a federation of features, and needs to know nothing of transforms.
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fedceo.data import DATASETS, Federation
from fedceo.data.cache import keep_tensors, read_tensors
from fedceo.data.sharing import DERIVED
from fedceo.models import OnFeatures
from fedceo.training.threads import one_torch_thread

CHUNKS = {"cpu": 4, "cuda": 256}
"""Records that are transformed at a time: on a CPU few, so that what they need stays near."""


def on_features(model: nn.Module, federation: Federation) -> tuple[nn.Module, Federation]:
    """The part of a model that is trained, and the federation as that part takes it.

    Features of published data sets are kept in the cache folder, those of a user's own records in memory alone.

    Args:
        model: any model, on the device and in the precision of training; one that is no `OnFeatures` is trained whole.
    """
    if not isinstance(model, OnFeatures):
        return model, federation
    first = next(model.parameters())
    about = getattr(model.transform, "version", None), first.device.type, first.dtype, federation.mean, federation.std

    def features(records: Tensor) -> Tensor:
        if about[0] is None:  # nothing says when two such transforms are the same
            return _computed(model, federation, records)
        return DERIVED.get(records, about, lambda: _features(model, federation, records, about))

    x, test_x = features(federation.x), features(federation.test_x)
    return model.trained, replace(federation, x=x, test_x=test_x, mean=(0.0,), std=(1.0,), features_of=federation)


def _features(model: OnFeatures, federation: Federation, records: Tensor, about: tuple[object, ...]) -> Tensor:
    """The features of raw records, (n, features), from the cache where they have been computed before.

    about: all that they depend on beside the records.
    """
    if federation.name not in DATASETS:
        return _computed(model, federation, records)
    digest = hashlib.sha256(str((*about, records.dtype, records.shape)).encode())
    digest.update(np.ascontiguousarray(records.numpy()).data)
    key = f"{federation.name}-features-{digest.hexdigest()[:24]}"
    if "features" not in (found := read_tensors(key)[0]):
        fresh = _computed(model, federation, records)
        keep_tensors(key, {"features": fresh})
        found = read_tensors(key)[0] or {"features": fresh}  # memory-mapped from the first time on
    return found["features"]


def _computed(model: OnFeatures, federation: Federation, records: Tensor) -> Tensor:
    first = next(model.parameters())
    empty = model.transform(first.new_zeros(1, *federation.shape))[:0]
    out = torch.empty(len(records), *empty.shape[1:], dtype=first.dtype)
    size = CHUNKS.get(first.device.type, 1)

    def transform(at: int) -> None:
        with torch.inference_mode():
            inputs = federation.inputs(records[at : at + size].to(first.device), first.dtype)
            out[at : at + size] = model.transform(inputs).cpu()

    threads = torch.get_num_threads() if first.device.type == "cpu" else 1
    # torch's own threads would wait for each other
    with one_torch_thread(), _whole_products(), ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(transform, range(0, len(records), size)):
            pass
    if first.is_cuda:
        torch.cuda.empty_cache()  # the transform took a large part of the memory, which others may need
    return out


@contextmanager
def _whole_products() -> Iterator[None]:
    """Products in all bits of float32 inside: train.tf32 is for training, and the cache serves other runs too."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
