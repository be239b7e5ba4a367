"""A real federation with nodes that let the server wait and nodes that send it more than it can hold."""

import json
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")

from fedceo.deploy.new import write_app
from fedceo.simulation.folder import RunFolder
from tests.support.flower_grid import experiment
from tests.support.superlink import Link, command, descendants, node_key, superlink

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc"),
]

HONEST = 2
TIMEOUT = 60
"""Seconds of a round, in which SuperNodes start a process for each message."""
SLACK = 1.25
"""How much longer than that a round may take where other tests use the machine; docs/federation.md has what it took."""
MOST_GROWTH = 200 * 2**20
"""Bytes by which the memory of the server's app may grow in its rounds; a bomb is 2 GiB."""

HOSTILE = ["drip", "silent", "bomb", "small_bomb", "forge"]


class Watch:
    """When rounds began and ended, and the peak of the memory of the server's app in bytes."""

    def __init__(self, link: Link, out: Path) -> None:
        self.link, self.asked, self.folder = link, out / "asked.json", RunFolder(out)
        self.begun: dict[int, float] = {}
        self.ended: dict[int, float] = {}
        self.before = self.peak = 0

    def is_over(self) -> bool:
        for pid in descendants(self.link.processes["superlink"].pid):
            if b"flwr-serverapp" in command(pid):
                self.peak = max(self.peak, peak_memory(pid))
        now = time.monotonic()
        if self.asked.exists():
            self.before = self.before or self.peak
            self.begun.setdefault(json.loads(self.asked.read_text())["entry"]["round"], now)
        for record in self.folder.history() if self.folder.exists else []:
            self.ended.setdefault(record["round"], now)
        return self.folder.finished


def peak_memory(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    lines = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(lines[0].split()[1]) * 1024 if lines else 0


def test_rounds_end_in_time_with_every_honest_report_and_bounded_memory(tmp_path: Path) -> None:
    clients = HONEST + len(HOSTILE)
    given = experiment(
        data={"clients": clients},
        cohort={"size": clients},
        privacy={"min_reports": HONEST},
        train={"rounds": 2},
        evaluation={"every": 2},
    )
    out = tmp_path / "run"
    write_app(tmp_path / "app", given)
    with superlink(tmp_path) as link:
        names = ["superlink"]
        for number in range(clients):
            key = node_key(tmp_path, f"key-{number}")
            link.register(key)
            if number < HONEST:
                names.append(link.node(number, key))
            else:
                names.append(f"hostile-{number}")
                link.spawn(
                    names[-1], "python", "-m", "tests.support.hostile_node", f"127.0.0.1:{link.port}",
                    str(tmp_path / "right-ca.crt"), str(key), str(number), HOSTILE[number - HONEST],
                )  # fmt: skip
        config = f"out={json.dumps(str(out))} timeout={TIMEOUT}"
        link.flwr("run", str(tmp_path / "app"), "here", "--run-config", config)
        watch = Watch(link, out)
        link.wait(watch.is_over, "the run to finish", *names, seconds=900)
    numbers = {name: str(HONEST + place) for place, name in enumerate(HOSTILE)}
    seconds = {t: watch.ended[t] - watch.begun[t] for t in watch.begun}
    print(f"rounds took {seconds} s; server's app: {watch.before} bytes before, {watch.peak} at its peak")
    for record in RunFolder(out).history():
        assert record["reports"] == HONEST
        assert sorted(record["refused"]) == sorted(numbers[name] for name in ("bomb", "small_bomb"))
        assert record["absent"] == [int(numbers[name]) for name in ("drip", "silent", "forge")]
        assert seconds[record["round"]] < SLACK * TIMEOUT
    assert [entry.reported for entry in RunFolder(out).ledger(repeatable=False).entries] == [tuple(range(HONEST))] * 2
    assert watch.peak - watch.before < MOST_GROWTH
