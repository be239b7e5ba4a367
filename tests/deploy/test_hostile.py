"""Clients that lie: refused, reported, and the round survives."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedceo.deploy.messages import RefusedError, pack, unpack
from fedceo.deploy.records import dealt_public_records
from fedceo.deploy.strategy import MethodStrategy
from fedceo.deploy.upload_tests import public_slopes
from fedceo.simulation.folder import RunFolder
from fedceo.training.schedule import Schedule
from tests.support.flower_grid import LocalGrid, experiment, local_grid

Weights = dict[str, torch.Tensor]
LIAR = 2


def changed(reply: Message, weights: Callable[[Weights], Weights] | None = None, **config: Any) -> Message:
    """The reply with weights or parts of its ticket changed."""
    content = RecordDict(
        {
            "arrays": reply.content["arrays"],
            "config": ConfigRecord(dict(reply.content.config_records["config"]) | config),
        }
    )
    if weights is not None:
        content["arrays"] = pack(weights(dict(reply.content.array_records["arrays"].to_torch_state_dict())))
    reply.content = content
    return reply


def with_arrays(reply: Message, change: Callable[[ArrayRecord], None]) -> Message:
    change(reply.content.array_records["arrays"])
    return reply


def with_record(reply: Message, name: str, record: ConfigRecord | MetricRecord) -> Message:
    reply.content[name] = record
    return reply


def sent_by_another(reply: Message) -> Message:
    reply.metadata.__dict__["_src_node_id"] = 1000
    return reply


def swap_header(record: ArrayRecord) -> None:
    """Says the right shape outside and a huge one inside."""
    first = next(iter(record))
    honest = record[first]
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (2**40,)})
    record[first] = Array(honest.dtype, tuple(honest.shape), honest.stype, stream.getvalue())


def pickled(record: ArrayRecord) -> None:
    first = next(iter(record))
    honest = record[first]
    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    record[first] = Array(honest.dtype, tuple(honest.shape), honest.stype, stream.getvalue())


def archive(record: ArrayRecord) -> None:
    """An archive of arrays, which np.load opens as gladly; inside, a thousand times its own size."""
    first = next(iter(record))
    honest = record[first]
    stream = io.BytesIO()
    np.savez_compressed(stream, x=np.zeros(300_000, dtype=np.float32))
    assert len(stream.getvalue()) < 2000
    record[first] = Array(honest.dtype, tuple(honest.shape), honest.stype, stream.getvalue())


def ten_times(record: ArrayRecord) -> None:
    first = next(iter(record))
    honest = record[first]
    record[first] = Array(honest.dtype, tuple(honest.shape), honest.stype, honest.data * 10)


def scaled(by: float) -> Callable[[Weights], Weights]:
    return lambda found: {name: w * by for name, w in found.items()}


LIES: dict[str, tuple[Callable[[Message], Message], str]] = {
    "wrong shapes": (
        lambda r: changed(r, lambda found: {name: w[:-1] for name, w in found.items()}),
        "expected float32",
    ),
    "transposed": (lambda r: changed(r, lambda found: {name: w.T for name, w in found.items()}), "expected float32"),
    "another dtype": (lambda r: changed(r, lambda found: {n: w.double() for n, w in found.items()}), "is float64"),
    "missing tensor": (lambda r: changed(r, lambda found: dict(list(found.items())[1:])), "tensors missing: "),
    "unknown tensor": (lambda r: changed(r, lambda found: found | {"x" * 500: torch.zeros(1)}), "unknown: "),
    "NaN": (lambda r: changed(r, scaled(float("nan"))), "NaN or Inf"),
    "one Inf": (
        lambda r: changed(
            r, lambda found: {n: w.index_fill(0, torch.tensor([0]), torch.inf) for n, w in found.items()}
        ),
        "NaN or Inf",
    ),
    "too far": (lambda r: changed(r, scaled(50.0)), "from its start, expected"),
    "ten times too large": (lambda r: with_arrays(r, ten_times), "bytes, expected at most"),
    "ten times the records": (
        lambda r: with_record(r, "more", MetricRecord({"x": [0.0] * 100_000})),
        "records arrays, config, more",
    ),
    "header of another array": (lambda r: with_arrays(r, swap_header), "cannot be read"),
    "a pickle": (lambda r: with_arrays(r, pickled), "cannot be read"),
    "an archive": (lambda r: with_arrays(r, archive), "cannot be read"),
    "not an array record": (
        lambda r: with_record(r, "arrays", MetricRecord({"a": 1})),
        "not a record of arrays",
    ),
    "no ticket": (
        lambda r: with_record(r, "config", ConfigRecord()),
        "config without round, client and nonce",
    ),
    "a word more": (lambda r: changed(r, words="x" * 10_000), "config with words, expected"),
    "another nonce": (lambda r: changed(r, nonce="0" * 32), "nonce of another message"),
    "another round": (lambda r: changed(r, round=1), "of round 1, expected 2"),
    "for another client": (lambda r: changed(r, client=0), "for client 0, expected 2"),
    "another sender": (sent_by_another, "sent by node 1000"),
}


def run_with(tmp_path: Path, prepare: Callable[[LocalGrid, MethodStrategy], None]) -> tuple[list[Any], MethodStrategy]:
    here = experiment(cohort={"size": 5}, privacy={"min_reports": 3}, train={"rounds": 3})
    grid = local_grid(here, Schedule(here.seed))
    server = MethodStrategy(here, dealt_public_records(here), tmp_path / "run", 0.01)
    prepare(grid, server)
    server.run(grid)
    return RunFolder(tmp_path / "run").history(), server


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_and_the_round_survives(lie: str, tmp_path: Path) -> None:
    tamper, reason = LIES[lie]

    def prepare(grid: LocalGrid, server: MethodStrategy) -> None:
        node = grid.nodes[1000 - 7 * LIAR]
        node.tamper = lambda reply: tamper(reply) if server.round == 1 else reply

    history, server = run_with(tmp_path, prepare)
    assert [record["reports"] for record in history] == [5, 4, 5]
    assert not any("discarded" in record for record in history)
    assert list(history[1]["refused"]) == [str(LIAR)]
    assert reason in history[1]["refused"][str(LIAR)]
    assert len(history[1]["refused"][str(LIAR)]) < 400
    second = server.ledger.entries[1]
    assert second.reported == (0, 1, 3, 4) and second.unused == (LIAR,) and second.released
    assert all(bool(torch.isfinite(w).all()) for w in server.state.weights.values())


def test_a_reply_that_flower_cannot_read_is_refused_and_the_others_count(tmp_path: Path) -> None:
    """Flower makes objects of the bytes while it fetches them, and raises whatever they make it raise."""

    def prepare(grid: LocalGrid, server: MethodStrategy) -> None:
        def spoil(reply: Message) -> Message:
            if server.round == 1:
                grid.unreadable.add(1000 - 7 * LIAR)
            return reply

        def mend(reply: Message) -> Message:
            if server.round == 2:
                grid.unreadable.clear()
            return reply

        grid.nodes[1000 - 7 * LIAR].tamper = spoil
        grid.nodes[1000].tamper = mend

    history, server = run_with(tmp_path, prepare)
    assert [record["reports"] for record in history] == [5, 4, 5]
    assert history[1]["refused"] == {
        str(LIAR): "error 0: a reply that cannot be read, ValueError: Type of object is not known"
    }
    assert server.ledger.entries[1].unused == (LIAR,)


def test_a_refused_upload_leaves_no_trace_in_the_model(tmp_path: Path) -> None:
    """The same end as if the liar had never answered."""

    def silence(grid: LocalGrid, server: MethodStrategy) -> None:
        grid.nodes[1000 - 7 * LIAR].tamper = lambda reply: None if server.round == 1 else reply

    def lie(grid: LocalGrid, server: MethodStrategy) -> None:
        grid.nodes[1000 - 7 * LIAR].tamper = lambda r: changed(r, scaled(50.0)) if server.round == 1 else r

    ends = []
    for name, prepare in (("silence", silence), ("lie", lie)):
        (tmp_path / name).mkdir()
        ends.append(run_with(tmp_path / name, prepare)[1].state.weights)
    assert all(torch.equal(ends[0][name], w) for name, w in ends[1].items())


def test_a_replayed_message_is_refused(tmp_path: Path) -> None:
    """Last round's reply instead of this round's, and the same reply twice in one round."""
    kept: list[Message] = []

    def prepare(grid: LocalGrid, server: MethodStrategy) -> None:
        def replay(reply: Message) -> Message:
            kept.append(reply)
            return kept[0] if server.round == 1 else reply

        grid.nodes[1000 - 7 * LIAR].tamper = replay

        def twice(reply: Message) -> Message:
            if server.round == 2:
                grid.extra.append(reply)
            return reply

        grid.nodes[1000].tamper = twice

    history, server = run_with(tmp_path, prepare)
    assert [record["reports"] for record in history] == [5, 4, 5]
    assert history[1]["refused"] == {f"node {1000 - 7 * LIAR}": "answers no message of this round"}
    assert history[2]["refused"] == {"0": "a second answer to one message"}
    assert server.ledger.participations[0] == 3


def test_an_old_upload_in_a_new_envelope_is_refused(tmp_path: Path) -> None:
    kept: list[RecordDict] = []

    def prepare(grid: LocalGrid, server: MethodStrategy) -> None:
        def replay(reply: Message) -> Message:
            kept.append(reply.content)
            if server.round == 1:
                reply.content = kept[0]
            return reply

        grid.nodes[1000 - 7 * LIAR].tamper = replay

    history, _ = run_with(tmp_path, prepare)
    assert history[1]["refused"] == {str(LIAR): "of round 1, expected 2"}


def test_honest_uploads_are_within_reach_however_small_the_noise(tmp_path: Path) -> None:
    """The bound without noise is C itself, so that rounding decides."""
    here = experiment(
        privacy={"noise_multiplier": 0.0, "clip": 1e-3}, train={"learning_rate": 5.0, "server_learning_rate": 0.3}
    )
    server = MethodStrategy(here, dealt_public_records(here), tmp_path / "run", 0.01)
    server.run(local_grid(here))
    assert all(record["refused"] == {} for record in RunFolder(tmp_path / "run").history())


def test_an_upload_of_the_old_reach_up_the_loss_is_refused(tmp_path: Path) -> None:
    """Within (C + s (sqrt(D) + 6)) of its start, one of five took the model wherever it wanted."""

    def prepare(grid: LocalGrid, server: MethodStrategy) -> None:
        here, weights = server.mechanism, server.state.weights
        entries = sum(w.numel() for w in weights.values())
        up = sum(public_slopes(server.model, server.federation, weights))
        assert isinstance(up, torch.Tensor)
        reach = here.clip * (1 + here.noise * (entries**0.5 + 6)) * up / up.norm()
        parts = torch.split(reach, [w.numel() for w in weights.values()])
        moved = {name: part.view_as(w) for (name, w), part in zip(weights.items(), parts, strict=True)}
        grid.nodes[1000 - 7 * LIAR].tamper = lambda reply: changed(
            reply, lambda _: {name: w + moved[name] for name, w in server.state.weights.items()}
        )

    history, server = run_with(tmp_path, prepare)
    assert [list(record["refused"]) for record in history] == [[str(LIAR)]] * 3
    assert "from its start, expected" in history[0]["refused"][str(LIAR)]
    assert server.ledger.entries[0].unused == (LIAR,)


@settings(max_examples=200)
@given(data=st.binary(max_size=400), cut=st.integers(0, 400), shape=st.lists(st.integers(-3, 2**62), max_size=4))
def test_whatever_the_bytes_a_reader_refuses_or_reads_what_was_expected(
    data: bytes, cut: int, shape: list[int]
) -> None:
    like = {"w": torch.zeros(3, 4)}
    honest = pack({"w": torch.ones(3, 4)})["w"]
    payloads = (data, honest.data[:cut], honest.data[:cut] + data)
    for array in (
        *(Array("float32", (3, 4), "numpy.ndarray", payload) for payload in payloads),
        Array("float32", tuple(shape), "numpy.ndarray", honest.data),
        Array(data.hex(), (3, 4), data.hex(), honest.data),
    ):
        try:
            found = unpack(ArrayRecord({"w": array}), like)["w"]
        except RefusedError:
            continue
        assert found.shape == (3, 4) and found.dtype == torch.float32


def test_arrays_come_back_as_they_were_sent() -> None:
    weights = {"z": torch.randn(3, 4), "a": torch.randn(2, dtype=torch.float64), "s": torch.tensor(1.5)}
    found = unpack(pack(weights), weights)
    assert list(found) == ["z", "a", "s"]
    assert all(torch.equal(found[name], w) for name, w in weights.items())
