"""Methods that must compute the same are compared bit for bit: in this room noise follows from the seed alone."""

import pytest

from fedceo.simulation import rounds


@pytest.fixture(autouse=True)
def noise_of_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "make_noise_key", lambda *of_the_run: "")
