"""`fedceo privacy` as a user types it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fedceo
from fedceo.cli.app import main
from fedceo.simulation.durable import read_json
from tests.support import independent_epsilons
from tests.support.experiment_text import FILE

Ask = Callable[..., tuple[int, str, str]]
PLAN = ("--clients", "100", "--cohort", "10", "--rounds", "300", "--delta", "1e-5")


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    def answer(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["fedceo", "privacy", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return answer


def test_rows_of_options_as_json(ask: Ask) -> None:
    code, out, _ = ask("account", *PLAN, "--noise-multiplier", "1.0", "--sampling", "poisson", "--json")
    rows = json.loads(out)
    assert code == 0
    needed = {"observer", "unit", "adjacency", "sampling", "epsilon", "delta", "accountant", "mechanism", "assumption"}
    assert all(needed <= set(row) for row in rows)
    found = {(row["mechanism"], row["observer"]): row["epsilon"] for row in rows}
    assert found["central", "outsider"] == pytest.approx(12.40, rel=0.01)
    assert found["central", "server"] is None
    assert found["distributed", "server"] == pytest.approx(301, rel=0.01)


def test_personalised_rows_and_their_hidden_twin(ask: Ask) -> None:
    options = (*PLAN, "--release", "personalised", "--sampling", "poisson")
    for sigma, interval, wanted in (("1.0", "15", 63.4), ("1.5", "10", 39.1), ("2.0", "10", 25.2)):
        _, out, _ = ask("account", *options, "--noise-multiplier", sigma, "--interval", interval, "--json")
        found = {row["observer"]: row for row in json.loads(out)}
        assert found["client if sizes were hidden"]["epsilon"] == pytest.approx(wanted, rel=0.01)
        assert found["client"]["epsilon"] > wanted
        assert "no guarantee" in found["client if sizes were hidden"]["assumption"]


def test_record_rows(ask: Ask) -> None:
    options = ("--noise-multiplier", "1.0", "--record-rate", str(1 / 7), "--record-steps", "210")
    _, out, _ = ask("account", *PLAN, *options, "--participations", "30", "--json")
    row = json.loads(out)[0]
    assert row["unit"] == "record" and row["epsilon"] == pytest.approx(151, rel=0.01)


def test_a_table_with_its_notes(ask: Ask) -> None:
    code, out, _ = ask("account", *PLAN, "--noise-multiplier", "1.0", "--mechanism", "distributed")
    assert code == 0 and "32.37" in out and "300.83" in out and "1 sees averages" in out


def test_calibration(ask: Ask) -> None:
    _, out, _ = ask("calibrate", *PLAN, "--epsilon", "8", "--sampling", "poisson", "--json")
    found = {each["mechanism"]: each for each in json.loads(out)}
    assert found["central"]["noise_multiplier"] == pytest.approx(1.29, rel=0.01)
    assert found["central"]["epsilon"] <= 8
    code, out, _ = ask("calibrate", *PLAN, "--epsilon", "8", "--observer", "server", "--participation-cap", "54")
    assert code == 0 and "13.9" in out
    _, out, _ = ask("calibrate", *PLAN, "--epsilon", "8", "--observer", "server", "--json")
    (found_by_options,) = json.loads(out)
    mu = 10**0.5 / found_by_options["noise_multiplier"]
    assert independent_epsilons.drawn_gaussian_epsilon(mu, 0.1, 300, 1e-5) == pytest.approx(8, rel=1e-3)
    assert found_by_options["epsilon"] <= 8


def test_groups_that_take_turns(ask: Ask) -> None:
    cyclic = (*PLAN, "--sampling", "cyclic")
    _, out, _ = ask("account", *cyclic, "--noise-multiplier", "2.0", "--json")
    rows = {row["observer"]: row for row in json.loads(out)}
    assert {row["mechanism"] for row in rows.values()} == {"central"}
    expected = independent_epsilons.drawn_gaussian_epsilon(30**0.5 / 2, 1.0, 1, 1e-5)  # ten whole groups, thirty turns
    assert rows["outsider"]["epsilon"] == pytest.approx(expected, rel=1e-4)
    code, out, _ = ask("calibrate", *cyclic, "--groups", "4", "--epsilon", "8")
    assert code == 0 and "75 turns" in out


def test_an_experiment_and_its_run(ask: Ask, tmp_path: Path) -> None:
    import fedceo

    file = tmp_path / "mine.toml"
    file.write_text(FILE)
    _, planned, _ = ask("account", str(file), "--json")
    fedceo.run(file, out=tmp_path / "run")
    _, spent, _ = ask("account", str(tmp_path / "run"), "--json")
    for one, other in zip(json.loads(planned)[:2], json.loads(spent)[:2], strict=True):
        assert one == other
    _, changed, _ = ask("account", str(file), "--set", "privacy.noise_multiplier=3.0", "--json")
    assert json.loads(changed)[0]["epsilon"] < json.loads(planned)[0]["epsilon"]
    _, out, _ = ask("calibrate", str(file), "--epsilon", "2", "--json")
    sigma = json.loads(out)[0]["noise_multiplier"]
    _, quiet, _ = ask("account", str(file), "--set", f"privacy.noise_multiplier={sigma}", "--json")
    assert json.loads(quiet)[0]["epsilon"] == pytest.approx(2, rel=1e-3)


BANDED = ("--set", "cohort.sampling=cyclic", "--set", "privacy.noise=banded")


@pytest.mark.parametrize(
    "command",
    [("account",), ("calibrate", "--epsilon", "8"), ("account", *BANDED, "--set", "privacy.target_epsilon=8")],
)
def test_an_experiment_is_accounted_for_without_torch(tmp_path: Path, command: tuple[str, ...]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(FILE)
    code = (
        "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules));"
        f"sys.argv = ['fedceo', 'privacy', {command[0]!r}, {str(file)!r}, *{command[1:]!r}];"
        "from fedceo.cli.app import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_an_unfinished_run_has_rows(ask: Ask, tmp_path: Path) -> None:
    import fedceo

    file = tmp_path / "mine.toml"
    file.write_text(FILE)
    fedceo.run(file, out=tmp_path / "run", should_stop=lambda: True)
    _, one_round, _ = ask("account", str(tmp_path / "run"), "--json")
    _, planned, _ = ask("account", str(file), "--json")
    assert 0 < json.loads(one_round)[0]["epsilon"] < json.loads(planned)[0]["epsilon"]


def test_an_audit_and_its_exit_code(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedceo.mechanisms.base import Mechanism

    file = tmp_path / "mine.toml"
    file.write_text(FILE)
    code, out, _ = ask("audit", str(file), "--rounds", "100", "--seed", "1")
    assert code == 0 and "0 of 2 views tested: too few rounds" in out and "variance" in out
    monkeypatch.setattr(Mechanism, "noise", property(lambda self: self.noise_multiplier / 2))
    code, out, _ = ask("audit", str(file), "--rounds", "100", "--seed", "1", "--json")
    report = json.loads(out)
    assert code == 1 and report["refuted"]
    assert not next(f for f in report["findings"] if f["check"] == "variance")["passed"]


def test_an_audit_of_a_run_stays_with_it(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(FILE)
    run = tmp_path / "run"
    fedceo.run(tmp_path / "mine.toml", out=run)
    code, out, _ = ask("audit", str(run), "--rounds", "50", "--seed", "1", "--json")
    assert code == 0 and json.loads(out) == read_json(run / "audit.json", expected=True)
    code, _, err = ask("audit", str(run), "--set", "seed=3")
    assert code == 2 and err.startswith("fedceo: --set: a run has been as it was")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("account",), "--clients, --cohort, --rounds, --noise-multiplier: needed, or an experiment file"),
        (("account", *PLAN), "--noise-multiplier: needed"),
        (("account", *PLAN[:-1], "0.01", "--noise-multiplier", "1"), "delta: 0.01, expected above 0 and below 1/N"),
        (("account", *PLAN, "--noise-multiplier", "1", "--release", "personalised"), "interval: needed"),
        (("account", *PLAN, "--noise-multiplier", "1", "--mechanism", "record"), "record_rate and record_steps"),
        (("account", *PLAN, "--noise-multiplier", "1", "--sampling", "coin"), "sampling: 'coin', expected one of"),
        (("account", *PLAN, "--noise-multiplier", "1", "--groups", "5"), 'groups: 5, expected with sampling "cyclic"'),
        (("account", "none.toml"), "no such experiment file"),
        (("account", "none.toml", "--clients", "3"), "says all that options would say"),
        (("calibrate", *PLAN), "--epsilon: the epsilon wanted is missing"),
        (("calibrate", *PLAN, "--epsilon", "1e-4", "--observer", "server"), "no noise multiplier up to 10000 reaches"),
        (("calibrate", *PLAN, "--epsilon", "8", "--observer", "client"), 'observer: "client" needs personal models'),
        (("calibrate", *PLAN, "--epsilon", "8", "--observer", "server", "--mechanism", "central"), "must be trusted"),
        (("calibrate", *PLAN, "--epsilon", "-1"), "target epsilon: -1.0"),
    ],
)  # fmt: skip
def test_refusals_are_one_line(ask: Ask, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = ask(*arguments)
    assert code == 2 and not out
    assert words in err and err.count("\n") == 1


BESIDE = {
    "--clients": "100", "--cohort": "10", "--rounds": "30", "--delta": "1e-6", "--sampling": "fixed",
    "--adjacency": "zero-out", "--mechanism": "central", "--release": "average", "--interval": "10",
    "--min-reports": "5", "--reports": "9", "--participations": "3", "--participation-cap": "5",
    "--record-rate": "0.1", "--record-steps": "10", "--noise-multiplier": "1.0",
}  # fmt: skip


@pytest.mark.parametrize("command", ["account", "calibrate --epsilon 8"])
@pytest.mark.parametrize("option", BESIDE)
def test_no_option_is_ignored_beside_a_file(ask: Ask, command: str, option: str, tmp_path: Path) -> None:
    """Not even one that says what is the default."""
    if command != "account" and option == "--noise-multiplier":
        pytest.skip("what calibrate looks for is no option of it")
    file = tmp_path / "mine.toml"
    file.write_text(FILE)
    code, out, err = ask(*command.split(), str(file), option, BESIDE[option])
    assert code == 2 and not out and err.count("\n") == 1
    assert f"{option}: {file} says all that options would say; change it with --set" in err


def test_set_is_not_ignored_where_there_is_no_file(ask: Ask) -> None:
    code, out, err = ask("account", *PLAN, "--noise-multiplier", "1", "--set", "train.rounds=3")
    assert code == 2 and not out and "--set: changes an experiment file, and none is given" in err
