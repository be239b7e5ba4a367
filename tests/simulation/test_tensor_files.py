"""Tensors that are read from files lie in memory like those that were computed, however long the file's header is."""

from pathlib import Path

import pytest
import torch

from fedceo.simulation.tensor_files import read_tensors, save_tensors

ALIGNMENT = 64
"""Bytes: where torch begins a tensor of its own, and the width of what a CPU reads at once."""


@pytest.mark.parametrize("length", range(0, 80, 8))
def test_no_header_moves_a_tensor(length: int, tmp_path: Path) -> None:
    """A header holds seconds and digests; a resumed run on weights that lie elsewhere ends on other bits."""
    written = {"a": torch.rand(3), "b": torch.rand(5, 7), "c": torch.rand(64, 10)}
    save_tensors(tmp_path / "file.safetensors", written, {"filling": "x" * length})
    read, about = read_tensors(tmp_path / "file.safetensors", expected=True)
    assert about == {"filling": "x" * length}
    for name, w in written.items():
        assert torch.equal(read[name], w)
        assert read[name].data_ptr() % ALIGNMENT == 0, name
