"""Files of tensors: safetensors with a checksum among its metadata, which any loader of safetensors reads."""

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedceo.errors import UsageError
from fedceo.mechanisms.banded import Noises
from fedceo.simulation.durable import IN_TENSORS, ZEROS, check_seal, sealed, write_whole

NOISE = "noise"
"""The kind of tensor in a checkpoint that is noise of an earlier round."""
PIECE = 1 << 22
"""Bytes that are read at a time where a file is only checked."""


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any] | None = None) -> None:
    """Write tensors with their checksum; about: what else to keep with them, as JSON."""
    metadata = {"sha256": ZEROS} | ({} if about is None else {"about": json.dumps(about)})
    placed = {name: w.detach().cpu().contiguous() for name, w in tensors.items()}
    write_whole(path, sealed(save(placed, metadata), IN_TENSORS))


def read_tensors(path: Path, *, expected: bool | None) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """The tensors of a file and what `save_tensors` was told about them, or one line that says what is wrong.

    expected: whether the file must have a checksum; None: it may.
    """
    try:
        _check(path, expected)
        with safe_open(path, framework="pt") as file:
            # in the file they lie where its header ends, and products of matrices round by where their operands lie
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            about = json.loads((file.metadata() or {}).get("about", "null"))
    except UsageError:
        raise
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cut short or not a safetensors file ({error})") from None
    return tensors, about if isinstance(about, dict) else None


def _check(path: Path, expected: bool | None) -> None:
    with path.open("rb") as file:
        length = file.read(8)
        header = int.from_bytes(length, "little")
        if header > os.fstat(file.fileno()).st_size - 8:
            raise ValueError("its header is longer than the file")
        head = length + file.read(header)
        check_seal(path, IN_TENSORS, head, iter(partial(file.read, PIECE), b""), expected=expected)


def flat_noise(noise: Noises) -> dict[str, Tensor]:
    """The noise of earlier rounds under one name for each tensor, for a file."""
    return {f"{NOISE}/{round_}/{name}": z for round_, of_round in noise.items() for name, z in of_round.items()}


def take_noise(tensors: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Undo `flat_noise`: what it had named is taken out of the tensors."""
    noise: dict[int, dict[str, Tensor]] = {}
    for key in [key for key in tensors if key.startswith(f"{NOISE}/")]:
        _, round_, name = key.split("/", 2)
        noise.setdefault(int(round_), {})[name] = tensors.pop(key)
    return noise
