"""What a GPU draws by its kernels, against the generator written out."""

import numpy as np
import pytest
import torch

from fedceo.training.draws import HAS_TRITON
from fedceo.training.noise import RecordNoise
from fedceo.training.schedule import Schedule
from tests.support.philox import philox

pytestmark = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a GPU and Triton")


def test_noise_is_philox_and_box_muller() -> None:
    """Against Philox 4x32-10 written out, for some entries of two clients and two steps."""
    assert philox(0, 0, 0)[0] == 0x6627E8D5  # the published test vector
    noise = RecordNoise([(Schedule(1), 3, [4, 9])], torch.device("cuda"), torch.float32)
    assert noise.keys is not None
    for step in (0, 7):
        drawn = noise.draw(step, 5000).cpu()
        for k, entry in ((0, 0), (1, 0), (0, 300), (1, 700), (0, 999), (1, 1024), (0, 4321)):
            block, part = divmod(entry, 4)
            words = philox(int(noise.keys[k]), block, step)
            u, v = ((words[part // 2 * 2] + 0.5) / 2**32, words[part // 2 * 2 + 1] / 2**32)
            expected = np.sqrt(-2 * np.log(u)) * (np.sin if part % 2 else np.cos)(2 * np.pi * v)
            assert float(drawn[k, entry]) == pytest.approx(expected, abs=1e-5)


def test_numbers_and_masks_of_clients_are_those_of_philox() -> None:
    """Whoever asks: a kernel that draws many clients' at once, or one mask."""
    from fedceo.training.cuda.draws import fill_masks, fill_numbers

    keys = torch.tensor([12345678901234567, 2**62 + 99]).cuda()
    drawn, first = fill_numbers(keys, [2500, 37]).tolist(), 0
    for key, count in zip(keys.tolist(), (2500, 37), strict=True):
        for i in (0, 1, 2, 36, count - 1):
            words = philox(key, i // 2, 0)[i % 2 * 2 :]
            assert drawn[first + i] == (words[0] << 32 | words[1]) >> 1
        first += count
    masks = fill_masks(keys[:1], (3, 8), (64,), 0.75)
    for step, entry in ((0, 0), (2, 70), (1, 511)):
        kept = philox(int(keys[0]), entry, step)[0] >> 8 < 0.75 * 2**24
        assert float(masks[step].flatten()[entry]) == pytest.approx(1 / 0.75 if kept else 0.0)
