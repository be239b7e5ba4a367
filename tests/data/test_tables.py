"""Records from tables: CSV, Parquet and data frames give what the same arrays give, with names kept."""

import csv
import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedceo
from fedceo.data import build_federation, federate, from_arrays, from_frame
from fedceo.data.picture import partition_figure
from fedceo.data.source import Source
from fedceo.data.tables import Columns, read_table
from fedceo.errors import UsageError
from fedceo.experiment.sections import Data

WORDS = np.array(["well", "sick", "very sick"])
PEOPLE = np.array(["ann", "bob", "cléo", "dan"])


def columns(records: int = 60) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "age": rng.normal(size=records).astype(np.float32),
        "outcome": WORDS[np.arange(records) % 3],
        "weight": rng.normal(size=records).astype(np.float32),
        "who": PEOPLE[rng.integers(4, size=records)],
    }


def write_csv(path: Path, table: dict[str, Any], head: str = "") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(head)
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*(map(str, values) for values in table.values()), strict=True))
    return path


def same(one: Source, other: Source) -> bool:
    tensors = ("x", "y", "test_x", "test_y")
    alike = all(torch.equal(getattr(one, name), getattr(other, name)) for name in tensors)
    return alike and (one.label_names, one.client_names) == (other.label_names, other.client_names)


def by_hand(table: dict[str, Any]) -> Source:
    """The same records from arrays, labels numbered in the order of their words."""
    order = sorted(WORDS.tolist())
    y = np.array([order.index(word) for word in table["outcome"]])
    return from_arrays(np.stack([table["age"], table["weight"]], 1), y, client=table["who"])


@pytest.mark.parametrize("kind", ["csv", "mark", "gzip", "frame", "categories", "mapping", "parquet"])
def test_every_form_of_a_table_gives_the_records_of_its_arrays(tmp_path: Path, kind: str) -> None:
    table, uses = columns(), Columns("outcome", "who")
    path = tmp_path / "people.csv"
    if kind == "frame":
        source = from_frame(pd.DataFrame(table), label="outcome", client="who")
    elif kind == "categories":
        source = from_frame(pd.DataFrame(table).astype({"outcome": "category"}), label="outcome", client="who")
    elif kind == "mapping":
        source = from_frame(table, label="outcome", client="who")
    elif kind == "parquet":
        pytest.importorskip("pyarrow")
        frame = pd.DataFrame(table).astype({"who": "category"})
        frame.to_parquet(tmp_path / "people.parquet")
        source = read_table(tmp_path / "people.parquet", uses)
    elif kind == "gzip":
        packed = gzip.compress(write_csv(path, table).read_bytes())
        path = tmp_path / "people.csv.gz"
        path.write_bytes(packed)
        source = read_table(path, uses)
    else:
        source = read_table(write_csv(path, table, "\ufeff" if kind == "mark" else ""), uses)
    expected = by_hand(table)
    assert same(source, Source(**{**vars(expected), "label_names": ("sick", "very sick", "well")}))


def test_without_clients_a_fixed_fifth_is_the_test_set() -> None:
    table = columns()
    del table["who"]
    source = from_frame(table, label="outcome")
    assert (len(source.y), len(source.test_y)) == (48, 12)
    order = sorted(WORDS.tolist())
    y = np.array([order.index(word) for word in table["outcome"]])
    arrays = from_arrays(np.stack([table["age"], table["weight"]], 1), y)
    assert torch.equal(source.x, arrays.x) and torch.equal(source.test_y, arrays.test_y)


@given(labels=st.lists(st.integers(-(10**6), 10**6), min_size=10, max_size=30))
@settings(max_examples=30, deadline=None)
def test_whole_numbers_are_ordered_as_numbers_in_a_file_and_in_a_frame(
    tmp_path_factory: pytest.TempPathFactory, labels: list[int]
) -> None:
    table = {"x": np.arange(len(labels)), "label": np.array(labels)}
    path = write_csv(tmp_path_factory.mktemp("tables") / "t.csv", table)
    for source in (from_frame(table, label="label"), read_table(path, Columns("label"))):
        assert source.label_names == tuple(map(str, sorted(set(labels))))
        y = {int(x): int(y) for x, y in zip(*together(source), strict=True)}
        assert [int(source.label_names[y[record]]) for record in range(len(labels))] == labels


def together(source: Source) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([source.x, source.test_x]).flatten(), torch.cat([source.y, source.test_y])


def test_natural_clients_keep_their_ids(tmp_path: Path) -> None:
    table = columns()
    path = write_csv(tmp_path / "people.csv", table)
    natural = Data(path=str(path), label_column="outcome", client_column="who")
    assert natural.partition == "natural", "who names clients means them"
    federation = build_federation(natural, 0)
    assert [federation.name_of(k) for k in range(federation.clients)] == sorted(PEOPLE)
    for client in range(federation.clients):
        own = np.flatnonzero(table["who"] == federation.name_of(client))
        assert set(federation.train[client].tolist()) <= set(own.tolist())
    figure = partition_figure(federation)
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == sorted(PEOPLE)
    assert {text.get_text() for text in figure.legends[0].get_texts()} == set(WORDS)

    few = build_federation(Data(**{**natural.model_dump(), "min_records": 16}), 0)
    counts = {who: int((table["who"] == who).sum()) for who in PEOPLE}
    assert list(few.client_names) == sorted(who for who in PEOPLE if counts[who] >= 16) != sorted(PEOPLE)
    pooled = federate(by_hand(table), Data(name="people", partition="pooled", clients=2), 0)
    assert pooled.name_of(1) == "1"


def test_a_partition_that_nobody_asked_for_does_not_pass_over_natural_clients_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said = 'data.partition: "iid" deals the records of 4 natural clients anew; "natural" keeps them'
    federate(by_hand(columns()), Data(name="people", clients=4, partition="iid"), 0)
    assert not caplog.messages
    for _ in range(2):
        federate(by_hand(columns()), Data(name="people", clients=4), 0)
    assert caplog.messages == [said], "once for many runs"
    table = Data(path="people.csv", label_column="outcome", client_column="who", partition="iid")
    assert (table.partition, table.clients) == ("iid", 100), "what is written counts"


def test_a_client_without_records_is_named_by_its_id() -> None:
    federation = federate(by_hand(columns()), Data(name="people", partition="natural"), 0)
    train = list(federation.train)
    train[2] = train[2][:0]
    empty = replace(federation, train=train)
    with pytest.raises(UsageError, match="client cléo has no records"):
        fedceo.run(EXPERIMENT, data=empty)


EXPERIMENT = {
    "data": {"name": "people", "partition": "natural"},
    "cohort": {"size": 2},
    "train": {"rounds": 1, "local_epochs": 1},
    "privacy": {"mechanism": "none"},
    "method": {"name": "fedavg"},
}


@pytest.mark.parametrize(
    "frame, words",
    [
        (pd.DataFrame({"a": [1.0, 2.0], "y": ["u", None]}), "column 'y', row 2: no value"),
        (pd.DataFrame({"a": [1.0, np.nan], "y": ["u", "v"]}), "column 'a', row 2: nan, expected a finite number"),
        (pd.DataFrame({"a": [1.0, 1e60], "y": ["u", "v"]}), "column 'a', row 2: 1e\\+60, expected a finite number"),
        (pd.DataFrame([[1, 2, 3]], columns=["a", "a", "y"]), "column 'a' is there twice"),
        (pd.DataFrame({"y": ["u", "v"]}), "no columns of numbers beside y"),
        ({"a": [1.0, 2.0], "y": [0, 1, 0]}, "columns of several lengths"),
        (3, "not a data frame"),
        (pd.DataFrame({"a": pd.array([1, None], "Int64"), "y": ["u", "v"]}), "column 'a', row 2"),
    ],
)
def test_a_frame_that_is_wrong_is_one_line(frame: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        from_frame(frame, label="y")
    assert "\n" not in str(refused.value)


def test_a_broken_parquet_file_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(UsageError, match="not a Parquet file"):
        read_table(tmp_path / "t.parquet", Columns("y"))


def test_an_experiment_file_trains_on_a_table(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "people.csv", columns())
    table = {"path": str(path), "label_column": "outcome", "client_column": "who", "partition": "natural"}
    from_file = fedceo.run(EXPERIMENT | {"data": table}, progress=False)
    from_memory = fedceo.run(EXPERIMENT, data=from_frame(columns(), label="outcome", client="who"), progress=False)
    assert from_file.history[-1]["test_accuracy"] == from_memory.history[-1]["test_accuracy"]
