"""What runs of one process share: the same object while somebody holds it, never one of other data."""

import gc
from pathlib import Path

import numpy as np
import pytest
import torch

from fedceo.data import build_federation
from fedceo.data.assignment import Resampled
from fedceo.data.cache import keep_tensors, read_tensors
from fedceo.data.sharing import Derived
from fedceo.experiment.sections import Data

DIGITS = Data(name="digits", clients=4, partition="dirichlet", alpha=0.5)


def test_a_tensor_is_made_once_while_somebody_holds_it() -> None:
    derived, made = Derived(), []

    def double(source: torch.Tensor) -> torch.Tensor:
        made.append(source)
        return 2 * source

    source = torch.arange(3.0)
    first = derived.get(source, "double", lambda: double(source))
    assert derived.get(source, "double", lambda: double(source)) is first and len(made) == 1
    assert derived.get(source, "other", lambda: double(source)) is not first, "asked for something else"
    equal = source.clone()
    assert derived.get(equal, "double", lambda: double(equal)) is not first, "another tensor, which may change"
    del first
    gc.collect()
    derived.get(source, "double", lambda: double(source))
    assert len(made) == 4, "nobody held it any more"


def test_a_tensor_in_the_place_of_one_that_is_gone_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython gives the number of an object that is gone to the next."""
    monkeypatch.setattr("builtins.id", lambda thing: 1)
    derived = Derived()
    one, other = torch.zeros(2), torch.ones(2)
    held = derived.get(one, "", lambda: one + 1)
    assert derived.get(other, "", lambda: other + 1).tolist() == [2, 2]
    assert held.tolist() == [1, 1]


def test_a_tensor_that_was_written_to_is_another() -> None:
    derived, source = Derived(), torch.zeros(2)
    held = derived.get(source, "", lambda: source + 1)
    source[0] = 5
    assert derived.get(source, "", lambda: source + 1).tolist() == [6, 1] and held.tolist() == [1, 1]
    with torch.inference_mode():
        other = torch.zeros(2)  # whose writings torch does not count
    assert derived.get(other, "", lambda: other + 1) is not held


def test_federations_are_shared_by_data_and_seed() -> None:
    first = build_federation(DIGITS, 0)
    assert build_federation(DIGITS.model_copy(), 0) is first
    assert build_federation(DIGITS, 1) is not first
    assert build_federation(DIGITS.model_copy(update={"alpha": 0.6}), 0) is not first


def test_files_of_a_users_own_are_read_again(tmp_path: Path) -> None:
    """They may have changed since."""
    path, rng = tmp_path / "mine.npz", np.random.default_rng(0)

    def write() -> None:
        x, y = rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2
        np.savez(path, x=x, y=y)

    settings = Data(path=str(path), clients=2, partition="iid")
    write()
    first = build_federation(settings, 0)
    write()
    assert not torch.equal(build_federation(settings, 0).x, first.x)


def test_a_cached_file_is_read_once_while_all_of_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDCEO_CACHE", str(tmp_path))
    keep_tensors("two", {"a": torch.arange(3), "b": torch.ones(2)}, "said")
    first, said = read_tensors("two")
    again, said_again = read_tensors("two")
    assert said == said_again == "said" and all(again[name] is first[name] for name in "ab")
    del first["b"], again
    gc.collect()
    third = read_tensors("two")[0]
    assert third["a"] is not first["a"] and torch.equal(third["a"], first["a"])
    file = tmp_path / "two.safetensors"
    file.with_name("other").write_bytes(b"damaged")
    file.with_name("other").replace(file)
    assert read_tensors("two") == ({}, ""), "somebody has written to it"


def test_draws_that_are_kept_are_those_that_were_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedceo.data.assignment.MOST_KEPT", 20)
    pool = torch.arange(100, 200)
    one, fresh = Resampled(pool, 50, 7, 3), [Resampled(pool, 50, 7, 3)[client] for client in range(50)]
    for client in [*range(50), 3, 3, 49, 0]:
        assert torch.equal(one[client], fresh[client])
    assert len(one._recent) <= 4


def test_labels_are_counted_once_for_records_and_features() -> None:
    data = build_federation(DIGITS, 0)
    for client in (2, 0, 2):
        assert data.labels_of(client) == torch.bincount(data.y[data.train[client]], minlength=10).tolist()
