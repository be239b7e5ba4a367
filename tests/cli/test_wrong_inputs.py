"""Wrong inputs by class, as people make them: each ends in one line and exit code 2, and nothing is half-written."""

import sys
from pathlib import Path

import numpy as np
import pytest

from fedceo.cli.app import main
from tests.support.experiment_text import FILE
from tests.support.user_modules import module_here

OWN = """
from torch import nn
from fedceo.methods import OwnMethod

def frozen(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes)).requires_grad_(False)

def no_module(shape, classes):
    return 3

def other_shape(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, classes))

def batch_norm(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))

class NeedsUploads(OwnMethod):
    needs_stack = True
"""

WRONG_FILES = [
    (("run", "empty.toml"), "empty.toml: empty, expected at least [data]"),
    (("run", "no-toml.toml"), "not a TOML file"),
    (("run", "bytes.toml"), "not a TOML file"),
    (("run", "half.toml"), "privacy: missing"),
    (("run", "nowhere/mine.toml"), "no such experiment file"),
    (("run", "solved.toml", "--epsilon", "1e-9"), "which no noise multiplier up to 10000 reaches"),
    (("run", "solved.toml", "--set", "method.name=own:NeedsUploads"), "needs each client's upload, which mechanism"),
    (("run", "mine.toml", "--cell", "a"), "the file has no [grid]"),
    (("run", "mine.toml", "--set", "extends=3"), "extends: unknown field"),
]
WRONG_FIELDS = [
    (
        ("--set", "method.strength=3"),
        "a field of blur-lus, ditto, fedceo, label-prior, mr-mtl, pfedme, and the method is fedavg",
    ),
    (("--set", "rounds=3"), "rounds: unknown field, did you mean train.rounds?"),
    (("--set", "data.noise_multiplier=3"), "did you mean privacy.noise_multiplier?"),
    (("--set", "train.learning_rates=3"), "did you mean learning_rate?"),
    (("--set", "method.name=fedagv"), "unknown method 'fedagv'"),
    (("--set", "model.name=mpl"), "did you mean mlp?"),
    (("--set", "model.name=own:missing"), "has no 'missing'"),
    (("--set", "model.name=nowhere:missing"), "there is no module 'nowhere'"),
    (("--set", "model.name=own:frozen"), "parameters are all frozen"),
    (("--set", "model.name=own:no_module"), "gives int, expected a torch module"),
    (("--set", "model.name=own:other_shape"), "does not take records of shape"),
    (("--set", "model.name=own:batch_norm"), "use GroupNorm or LayerNorm"),
    (("--set", "method.name=own:NeedsUploads"), 'which mechanism "central" does not release'),
    (("--set", "privacy.noise_multiplier=1e300"), "expected 0 or 0.0001 to 1e+12"),
    (("--set", "privacy.noise_multiplier=1e-300"), "expected 0 or 0.0001 to 1e+12"),
    (("--set", "privacy.noise_multiplier=nan"), "privacy.noise_multiplier"),
    (("--set", "privacy.noise_multiplier=inf"), "privacy.noise_multiplier"),
    (("--set", "privacy.mechanism=laplace"), "privacy.mechanism"),
    (("--set", "privacy.observer=nobody"), "privacy.observer"),
    (("--set", "privacy.delta=1"), "privacy.delta"),
    (("--set", "privacy.delta=0.5"), "delta"),
    (("--set", "train.learning_rate=0"), "train.learning_rate"),
    (("--set", "train.batch_size=0"), "train.batch_size"),
    (("--set", "train.optimizer=rmsprop"), "train.optimizer: Input should be 'sgd', 'adam' or 'adamw'"),
    (("--set", "train.optimizer=adam", "--set", "train.momentum=0.9"), 'train.momentum: 0.9 is of optimizer "sgd"'),
    (("--set", "train.weight_decay=-1"), "train.weight_decay"),
    (("--method", "dp-fedsgd", "--set", "train.optimizer=adam"), "are of local steps, and method"),
    (("--set", "train.device=tpu"), "train.device"),
    (("--set", "train=3"), "train"),
    (("--set", "seed=-1"), "seed"),
    (("--set", "seed=99999999999999999999"), "seed"),
    (("--set", "data.partition=random"), "data.partition"),
    (("--set", "data.clients=100000"), "clients"),
    (("--set", "data.path=mine.npz"), 'exactly one of name and path is needed, got name "digits" and path "mine.npz"'),
    (("--set", "privacy.observer=client"), 'privacy.observer: "client" needs personal'),
    (("--set", "evaluation.also_at=[5000]"), "evaluation.also_at: 5000, expected at most train.rounds"),
    (("--set", "data.client_column=who"), "target_columns and text_column are of a table at path"),
    (("--set", "task.name=regresion"), "unknown task 'regresion', did you mean regression?"),
    (("--set", "task.name=regression"), 'task.name: "regression" needs numbers to predict'),
    (("--set", "task.name=binary"), "needs one of two labels a record, but digits has one of 10 labels a record"),
    (("--set", "task.name=multi-label"), "needs a 0 or 1 for every label (data.target_columns)"),
    (("--set", "task.name=next-token"), "needs texts (data.text_column), but digits has one of 10 labels a record"),
    (("--set", 'task.metrics=["f2"]'), "metrics: 'f2', expected some of accuracy, f1 or"),
    (("--set", 'task.metrics=["rmse"]'), "metrics: 'rmse', expected some of accuracy, f1 or"),
    (("--set", "task.metrics=[]"), "metrics: 'none', expected some of accuracy, f1 or"),
    (("--set", "task.loss=huber"), "loss: 'huber', expected \"module:callable\""),
    (("--set", "task.loss=own:missing"), "has no 'missing'"),
    (("--set", 'task.metrics=["f1"]', "--set", "evaluation.choose_by=personal"), "goes by the accuracy on each class"),
    (("--set", 'task.metrics=["f1"]', "--set", "record.every=1"), "goes by the accuracy on each class"),
    (("--set", "evaluation.every=0.5"), "evaluation.every"),
    (("--rounds", "-1"), "train.rounds"),
    (("--rounds", "0"), "train.rounds"),
    (("--rounds", "many"), "--rounds"),
    (("--seed", "-3"), "seed"),
    (("--epsilon", "0"), "privacy.target_epsilon"),
    (("--epsilon", "-2"), "privacy.target_epsilon"),
    (("--epsilon", "nan"), "privacy.target_epsilon"),
    (("--method", "best"), "unknown method 'best'"),
    (("--device", "gpu"), "train.device"),
    (("--learning-rate", "3"), "--set train.learning_rate=VALUE"),
    (("--strength", "3"), "--set method.strength=VALUE"),
    (("--engine", "spark"), "--engine"),
    (("--workers", "3"), "is for --engine ray"),
    (("--out", "mine.toml"), "cannot be written to"),
    (("--out", "/dev/null/x"), "cannot be written to"),
]
TABLE = """id,age,outcome,score,who
1,30,sick,1.5,ann
2,,well,0.5,bob
3,50,sick,2.5,ann
4,x,well,3.5,bob
"""
WRONG_TABLES = [
    ((), "the columns of people.csv are id, age, outcome, score, who"),
    (("label_column=outcom",), "no column 'outcom' (label); the columns are id, age, outcome, score, who"),
    (("label_column=outcome", "client_column=whom"), "no column 'whom' (client)"),
    (("label_column=outcome", "client_column=outcome"), "column 'outcome' is named for two uses"),
    (("label_column=outcome",), "column 'age', row 2: '', expected a number"),
    (("label_column=outcome", 'feature_columns=["who"]'), "column 'who', row 1: 'ann', expected a number"),
    (("label_column=score", 'feature_columns=["id"]'), "column 'score': 0.5, expected labels: words or whole numbers"),
    (("label_column=age", 'feature_columns=["id"]'), "column 'age', row 2: no value"),
    (("label_column=outcome", 'target_columns=["score"]'), "only one of label_column, target_columns and text_column"),
    (('target_columns=["age"]', 'feature_columns=["id"]'), "column 'age', row 2: '', expected a number"),
    (('target_columns=["scores"]',), "no column 'scores' (targets)"),
    (("text_column=words",), "no column 'words' (text)"),
    (("text_length=3",), "text_length belongs to text_column"),
    (('target_columns=["score"]', 'feature_columns=["id"]', "clients=2"), "cohort.size is 5, more than data.clients"),
    (("label_column=outcome", "path=uneven.csv"), "row 2 has 1 values, expected 2"),
    (("label_column=outcome", "path=twice.csv"), "column 'a' is there twice"),
    (("label_column=outcome", "path=nothing.csv"), "empty, expected a row of column names"),
    (("label_column=outcome", "path=latin.csv"), "not a CSV file in UTF-8"),
    (("label_column=outcome", "path=nowhere.csv"), "no such file"),
    (("label_column=outcome", "path=labels.npz"), "has no columns to name"),
]
WRONG_TASKS = [
    (
        ('target_columns=["score"]', 'feature_columns=["id"]'),
        "classification",
        "needs one label a record, but people.csv",
    ),
    (('target_columns=["score"]', 'feature_columns=["id"]'), "multi-label", "has 1 number a record other than 0 and 1"),
    (('target_columns=["score"]', 'feature_columns=["id"]', "partition=dirichlet"), "regression", "goes by labels"),
    (("text_column=outcome",), "regression", "needs numbers to predict"),
    (("text_column=outcome", "text_length=4"), "next-token", "does not take records of shape (4,)"),
]
WRONG_COMMANDS = [
    (("rnu", "mine.toml"), "No such command 'rnu'"),
    (("run", "--resume", "mine.toml"), "not a run folder"),
    (("run", "mine.toml", "--resume", "mine.toml"), "--resume: takes the folder alone"),
    (("partition", "mine.toml", "--rounds", "3"), "--set train.rounds=VALUE"),
    (("partition", "mine.toml", "--out", "who.doc"), "ends in .png or .pdf"),
    (("partition", "mine.toml", "--out", "/proc/who.png"), "/proc/who.png"),
    (("partition", "labels.toml"), "expected labels that count from 0; give y - 1"),
    (("fields", "trian"), "did you mean train?"),
    (("report", "nowhere"), "nowhere"),
    (("report", "mine.toml", "--observer", "nobody"), "observer: 'nobody', expected one of outsider"),
    (("release", "nowhere", "-o", "x"), "not a run folder"),
    (("attack", "nowhere"), "nowhere"),
    (("privacy", "account"), "--clients"),
    (("privacy", "account", "mine.toml", "--rounds", "3"), "change it with --set train.rounds=3"),
    (("privacy", "calibrate", "mine.toml"), "--epsilon: the epsilon wanted is missing"),
    (("privacy", "calibrate", "mine.toml", "--epsilon", "3", "--observer", "nobody"), "observer: 'nobody', expected"),
    (("privacy", "audit", "nowhere.toml"), "no such experiment file"),
    (("sweep", "nowhere"), "no such experiment file or folder"),
    (("sweep", "mine.toml", "--grid", "train.rounds=3"), "expected section.field=[value, ...]"),
    (("sweep", "mine.toml", "--cell", "b*"), "matches none"),
    (("tune", "mine.toml", "--trials", "0"), "--trials"),
]
PLAN = ("privacy", "account", "--clients", "100", "--cohort", "10")
WRONG_PLANS = [
    (("--rounds", "-1", "--noise-multiplier", "1"), "--rounds: -1, expected at least 1"),
    (("--rounds", "5", "--noise-multiplier", "-1"), "noise_multiplier: -1"),
    (("--rounds", "5", "--noise-multiplier", "1e300"), "expected 0 or 0.0001 to 1e+12"),
    (("--rounds", "5", "--noise-multiplier", "1e-300"), "expected 0 or 0.0001 to 1e+12"),
    (("--rounds", "5", "--noise-multiplier", "1", "--delta", "2"), "delta"),
    (("--rounds", "5", "--noise-multiplier", "1", "--sampling", "uniform"), "sampling"),
    (("--rounds", "5", "--noise-multiplier", "1", "--reports", "11"), "reports"),
    (("--rounds", "5", "--noise-multiplier", "1", "--participations", "6"), "expected at most --rounds, 5"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text(FILE)
    (tmp_path / "solved.toml").write_text(FILE.replace("noise_multiplier = 1.0", "target_epsilon = 3.0"))
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "no-toml.toml").write_text("{data: digits}")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "half.toml").write_text('[data]\nname = "digits"\n[method]\nname = "fedavg"\n')
    (tmp_path / "labels.toml").write_text(FILE.replace('name = "digits"', 'path = "labels.npz"'))
    (tmp_path / "table.toml").write_text(FILE.replace('name = "digits"', 'path = "people.csv"'))
    few = FILE.replace("clients = 20", "clients = 2").replace("size = 5", "size = 2")
    (tmp_path / "few.toml").write_text(few.replace('name = "digits"', 'path = "people.csv"'))
    (tmp_path / "people.csv").write_text(TABLE)
    (tmp_path / "uneven.csv").write_text("outcome,a\n1,2\n3\n")
    (tmp_path / "twice.csv").write_text("outcome,a,a\n1,2,3\n")
    (tmp_path / "nothing.csv").write_text("")
    (tmp_path / "latin.csv").write_bytes("outcome,größe\n1,2\n".encode("latin1"))
    np.savez(tmp_path / "labels.npz", x=np.zeros((60, 4), np.float32), y=np.arange(60) % 3 + 1)
    return tmp_path


@pytest.mark.parametrize(
    "arguments, words",
    [
        *WRONG_FILES,
        *((("run", "mine.toml", *given), words) for given, words in WRONG_FIELDS),
        *(
            (("run", "table.toml", *(part for each in given for part in ("--set", f"data.{each}"))), words)
            for given, words in WRONG_TABLES
        ),
        *(
            (
                ("run", "few.toml", "--set", f"task.name={task}", *(p for e in given for p in ("--set", f"data.{e}"))),
                words,
            )
            for given, task, words in WRONG_TASKS
        ),
        *WRONG_COMMANDS,
        *(((*PLAN, *given), words) for given, words in WRONG_PLANS),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_a_wrong_input_is_one_line_and_exit_2_and_writes_nothing(
    folder: Path,
    arguments: tuple[str, ...],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = module_here("own", OWN, folder, monkeypatch)
    before = sorted(folder.rglob("*"))
    monkeypatch.setattr(sys, "argv", ["fedceo", *(each.replace("=own:", f"={own}:") for each in arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert printed.err.startswith("fedceo: ") and printed.err.count("\n") == 1
    assert words in printed.err
    left = [path for path in folder.rglob("*") if "__pycache__" not in path.parts]
    assert sorted(left) == before
