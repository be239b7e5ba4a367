"""Tables in terminals of several widths: nothing is cut off."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from fedceo.cli.app import main
from fedceo.report.verdicts import audit_in_words, views_tested
from fedceo.studies.table import COLUMNS
from fedceo.terminal import inventory, results, studies, tables
from fedceo.terminal.tables import Column, show_table
from tests.support.experiment_text import FILE

Draw = Callable[[int, Callable[[], None]], str]
ACCURACY = {
    "last": 0.4011, "best": 0.4122, "at_best_validation": 0.3928, "last_unsmoothed": 0.3833,
    "last_unsmoothed_round": 15,
    "average": 0.4044, "local_accuracy_last": 0.1838, "personal_accuracy_last": 0.2226,
}  # fmt: skip
TOLD = "Gaussian, closed form, with all memberships told"
PRIVACY = [
    {"observer": name, "mechanism": "distributed", "unit": "user", "adjacency": "zero-out", "sampling": sampling,
     "epsilon": epsilon, "delta": 1e-5, "accountant": accountant, "assumption": f"what {name} sees"}
    for name, sampling, epsilon, accountant in (
        ("outsider", "fixed", 78.59, TOLD), ("participant", "fixed", 78.61, TOLD),
        ("server", "none", 133.09, TOLD[:21]),
        ("client if sizes were hidden", "poisson", None, "PLD, fixed-size sampling, mixed over smoothings"),
    )
]  # fmt: skip
RESULT: dict[str, Any] = {
    "method": "fedceo", "data": "digits", "model": "mlp", "clients": 20, "rounds": 20, "seed": 0, "seconds": 1234.56,
    "engine": "batched", "device": "cpu", "regime": "user-level, distributed noise", "noise_multiplier": 10.25,
    "accuracy": ACCURACY, "privacy": PRIVACY, "ended_early": None, "discarded_rounds": 0, "nonfinite_updates": 0,
}  # fmt: skip
FREE = RESULT | {"regime": "no privacy", "noise_multiplier": 0.0, "privacy": [PRIVACY[0] | {"epsilon": None}]}
RUNS: Any = {
    name: SimpleNamespace(result=each) for name, each in (("FedAvg", FREE), ("UDP-FedAvg", RESULT), ("FedCEO", RESULT))
}
VIEWS = [
    {"view": name, "observer": observer, "scores": scores, "claim": 3.162, "bound": bound, "verdict": verdict,
     "epsilon_claimed": 126.38, "epsilon_run": 68.47}
    for name, observer, scores, bound, verdict in (
        ("average", "outsider", 12289, 0.256, "passed"), ("upload", "server", 12290, 2.131, "not testable"),
        ("upload - peer", "server", 12291, 1.762, "refuted"), ("upload - previous", "server", 6138, 1.225, "passed"),
        ("returned", "client", 8177, 1.023, "not testable"),
    )
]  # fmt: skip
CHECK = {
    "check": "correlation",
    "measured": 0.04792,
    "expected": "at most 0.0885 between any two uploads",
    "passed": True,
}
AUDIT: dict[str, Any] = {
    "mechanism": "distributed", "noise_multiplier": 2.077, "rounds": 40, "delta": 1e-5, "refuted": True,
    "findings": [CHECK, CHECK | {"check": "variance", "passed": False}], "views": VIEWS,
}  # fmt: skip
GAIN = {"value": -10.24, "low": -11.42, "high": -9.06}
ATTACK: dict[str, Any] = {
    "attack": "dlg", "records": [1, 2], "data": "cifar10", "model": "dlg-lenet", "rounds_trained": 0, "iterations": 300,
    "restarts": 2, "regime": "user-level, distributed noise", "noise_multiplier": 1.0, "clip": 1.0, "cohort": 10,
    "local_steps": 1, "seed": 0,
    "rows": [
        {"name": name, "holds": holds, "psnr": {"value": 14.3, "low": 11.4, "high": 19.3}, "over_constant": GAIN,
         "ssim": {"value": 0.96, "low": 0.83, "high": 1.0}, "mse": {"value": 0.286, "low": 0.2628, "high": 0.3343},
         "label_hit": None if name == "constant" else {"value": 0.5, "low": None, "high": None}, "seconds": 2345.0}
        for name, holds in (("constant", "nothing; best single colour"), ("control", "the same without privacy"),
                            ("attack", "T1, upload after one step"))
    ],
}  # fmt: skip
NUMBERS = ("40.11", "41.22", "39.28")


def sweep(names: int) -> list[dict[str, Any]]:
    row = dict.fromkeys(COLUMNS) | {
        "regime": "user-level, distributed noise", "sigma": 1.0, "seeds": 3, "last": 71.25, "last sd": 10.31,
        "best": 72.5, "best sd": 0.42, "unsmoothed": 70.01, "at best validation": 71.11, "P-loc": 81.23,
        "P-glob": 61.23, "epsilon outsider": 121.72, "epsilon server": 1333.09,
    }  # fmt: skip
    return [row | {"experiment": f"mnist-mlp/fedceo-{n}/tuned"} for n in range(names)]


def calibration() -> None:
    each = {"mechanism": "distributed", "observer": "outsider", "unit": "user", "noise_multiplier": 12.345,
            "epsilon": 7.9991, "delta": 1e-5, "assumption": "sees averages, not who was in; " * 6}  # fmt: skip
    studies.show_calibration([each], 8.0)


def checksums() -> None:
    row = {"file": "cifar-10-python.tar.gz", "bytes": 170498071, "md5": "c58f30108f718f92721af3b95e74349a"}
    inventory.show_checked([row | {"verdict": "as it should be"}])


SHOWN: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    "run": (lambda: results.show_result(RESULT, Path("run")),
            (*NUMBERS, "38.33", "18.38", "22.26", "P-loc", "P-glob", "78.59", "133.09", "1.0e-05", "participant")),
    "demo": (lambda: results.show_comparison(RUNS, Path("runs")), (*NUMBERS, "10.25", "1234.6", "UDP-FedAvg", "78.61")),
    "audit": (lambda: studies.show_audit(AUDIT),
              ("0.04792", "12289", "12291", "6138", "3.162", "2.131", "126.38", "68.47", "REFUTED", "FAILED")),
    "attack": (lambda: studies.show_attack(ATTACK),
               ("14.3", "[11.4, 19.3]", "-10.2", "[-11.4, -9.1]", "0.2860", "[0.2628, 0.3343]", "2345", "control")),
    "sweep": (lambda: studies.show_sweep(sweep(3), Path("out")),
              ("71.25", "± 10.31", "± 0.42", "70.01", "81.23", "61.23", "121.72", "1333.09")),
    "long sweep": (lambda: studies.show_sweep(sweep(12), Path("out")),
                   ("mnist-mlp/fedceo-11/tuned", "71.25", "± 10.31", "70.01", "81.23", "121.72", "1333.09")),
    "calibration": (calibration, ("12.35", "8.00", "1.0e-05", "distributed")),
    "tuned": (lambda: studies.show_tuned({"fedceo": {"validation_accuracy": 0.8123, "file": "tuned/fedceo.toml",
                                                    "note": "best of 24 trials of 30 rounds on validation"}}),
              ("81.23", "tuned/fedceo.toml")),
    "data": (lambda: inventory.show_data([{"name": "cifar10", "missing": None, "where": "cifar-10-batches-py"}], None),
             ("cifar10", "there", "cifar-10-batches-py")),
    "checksums": (checksums, ("170,498,071", "c58f30108f718f92721af3b95e74349a", "cifar-10-python.tar.gz")),
}  # fmt: skip


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Draw:
    def drawn(width: int, show: Callable[[], None]) -> str:
        for module in (inventory, results, studies, tables):
            monkeypatch.setattr(module, "console", lambda: Console(width=width))
        show()
        return capsys.readouterr().out

    return drawn


@pytest.mark.parametrize("width", [80, 100, 120, 160])
@pytest.mark.parametrize("name", SHOWN)
def test_nothing_is_cut_off(draw: Draw, name: str, width: int) -> None:
    show, words = SHOWN[name]
    out = draw(width, show)
    assert "…" not in out and max(map(len, out.splitlines())) <= width
    assert [word for word in words if word not in out] == []


@pytest.mark.parametrize("width", [24, 40, 60])
@pytest.mark.parametrize("name", SHOWN)
def test_nothing_is_cut_off_in_the_narrowest_terminals(draw: Draw, name: str, width: int) -> None:
    out = draw(width, SHOWN[name][0])
    assert "…" not in out and max(map(len, out.splitlines())) <= width


def test_many_rows_go_on_below(draw: Draw) -> None:
    out = draw(80, lambda: studies.show_sweep(sweep(12), Path("out")))
    assert out.count("mnist-mlp/fedceo-3/tuned") == out.count("experiment ") > 1


def test_few_rows_are_turned(draw: Draw) -> None:
    out = draw(80, lambda: studies.show_attack(ATTACK))
    assert re.search(r"constant.*control.*attack", out) and re.search(r"label hit.*-.*0\.50.*0\.50", out)
    assert re.search(r"PSNR, dB +│ +14.3 \[11.4, 19.3\]", draw(120, lambda: studies.show_attack(ATTACK)))
    assert "the control fails" in out


def test_what_is_the_same_in_all_rows_is_said_once(draw: Draw) -> None:
    out = draw(80, lambda: results.show_privacy(PRIVACY, tables.console()))
    assert out.startswith("unit: user; adjacency: zero-out; delta: 1.0e-05\n")
    assert out.count("zero-out") == 2, "the word and its meaning"


def test_what_all_rows_rest_on_is_said_once(draw: Draw) -> None:
    rows = [row | {"assumption": f"sees {row['observer']}; seeded; {row['observer']} too"} for row in PRIVACY]
    out = draw(80, lambda: results.show_privacy(rows, tables.console()))
    assert out.count("seeded") == 1 and f"sees {rows[0]['observer']}; {rows[0]['observer']} too" in out
    alike = [row | {"assumption": "sees averages; seeded"} for row in PRIVACY]
    assert " 1 sees averages; seeded " in draw(80, lambda: results.show_privacy(alike, tables.console()))


def test_accuracy_of_clients_own_models_only_where_it_was_measured(draw: Draw) -> None:
    without = RESULT | {"accuracy": ACCURACY | {"local_accuracy_last": None, "personal_accuracy_last": None}}
    assert "P-" not in draw(80, lambda: results.show_result(without, Path("run")))


def test_brackets_are_only_text(draw: Draw) -> None:
    columns = (Column("name", "name"), "number")
    assert "[red]a[/red]" in draw(80, lambda: show_table(tables.console(), columns, [("[red]a[/red]", "1")]))


def test_an_audit_says_what_it_did_not_test() -> None:
    def audit(*verdicts: str) -> dict[str, Any]:
        return {"refuted": "refuted" in verdicts, "views": [{"verdict": verdict} for verdict in verdicts]}

    none = audit("not testable", "not testable")
    assert views_tested(none) == 0
    assert audit_in_words(none).startswith("0 of 2 views tested: too few rounds; give more with --rounds")
    assert "nothing refuted" not in audit_in_words(none)
    some = audit_in_words(audit("passed", "not testable"))
    assert some.startswith("nothing refuted, but only 1 of 2 views tested: too few rounds for the others")
    assert audit_in_words(audit("passed")).startswith("nothing refuted, 1 of 1 views tested; an audit can refute")
    assert audit_in_words(audit("refuted", "not testable")) == "the claim is refuted"


def test_few_rounds_test_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text(FILE)
    printed = []
    for options in ((), ("--json",)):
        monkeypatch.setattr("sys.argv", ["fedceo", "privacy", "audit", f"{tmp_path}/mine.toml", "--rounds=2", *options])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        printed.append(capsys.readouterr().out)
    assert "0 of 2 views tested: too few rounds" in printed[0] and json.loads(printed[1])["tested"] == 0
