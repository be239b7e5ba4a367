"""Tables for papers: what is bold, what is missing, what the caption says, and text that LaTeX must not read."""

import csv
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedceo.errors import UsageError
from fedceo.report.loading import group_runs, load_runs
from fedceo.report.table import paper_table
from fedceo.report.writers import Column, Table, escaped, to_csv, to_latex, to_markdown
from tests.support.made_runs import made_group

A = {0: 70.0, 1: 72.0, 2: 71.0}
B = {0: 70.5, 1: 72.6, 2: 71.4}


def rows_of(latex: str) -> dict[str, list[str]]:
    """The cells of each row behind its first, without the room that phantoms take."""
    plain = re.sub(r"\\phantom\{(?:[^{}]|\{[^{}]*\})*\}", "", latex)
    lines = [line.removesuffix(r" \\").split(" & ") for line in plain.splitlines() if line.endswith(r"\\")]
    return {line[0]: [cell.strip() for cell in line[1:]] for line in lines}


def test_the_best_is_bold_and_the_others_have_differences() -> None:
    rows = rows_of(to_latex(paper_table([made_group(A), made_group(B, method="fedceo")])))
    assert rows["FedCEO"][:2] == [r"\textbf{71.50} $\pm$ 1.05", "--"]
    assert rows["UDP-FedAvg"][0] == r"71.00 $\pm$ 1.00"
    assert rows["UDP-FedAvg"][1] == "$-$0.50 [$-$0.75, $-$0.25]"


def test_ties_are_all_bold() -> None:
    groups = [made_group(A), made_group(A, method="fedceo"), made_group({0: 1.0}, method="fedprox")]
    assert to_latex(paper_table(groups)).count(r"\textbf{71.00}") == 2
    assert to_markdown(paper_table(groups)).count("**71.00**") == 2


def test_nothing_is_best_of_one() -> None:
    assert r"\textbf" not in to_latex(paper_table([made_group(A)]))


def test_each_setting_has_a_best_of_its_own() -> None:
    groups = [
        made_group(values, method=method, privacy={"noise_multiplier": sigma})
        for sigma, level in ((0.5, 0), (1.0, -20))
        for method, values in (("fedavg", {s: v + level for s, v in A.items()}), ("fedceo", {0: 10.0}))
    ]
    latex = to_latex(paper_table(groups))
    assert r"\textbf{71.00}" in latex and r"\textbf{51.00}" in latex and latex.count(r"\midrule") == 2
    assert "of its setting" in latex
    assert r"0.5 &" in latex and r"1\phantom{.5} &" in latex, "numbers of settings are aligned too"


def test_one_seed_has_neither_spread_nor_interval() -> None:
    table = paper_table([made_group({0: 70.0}), made_group({0: 71.0}, method="fedceo")])
    rows = rows_of(to_latex(table))
    assert rows["UDP-FedAvg"][:2] == ["70.00", "$-$1.00"] and "one seed each" in table.caption
    assert "interval" not in table.caption


def test_missing_cells_are_dashes_and_empty_in_csv() -> None:
    groups = [made_group(A), made_group({7: 70.0}, method="fedceo"), made_group(A, method="fedprox", epsilon=None)]
    table = paper_table(groups, ["best", "P-loc", "difference", "outsider"])
    rows = rows_of(to_latex(table))
    assert rows["FedCEO"][1:3] == ["--", "--"] and rows["FedProx"][3] == "--"
    read = {row["method"]: row for row in csv.DictReader(to_csv(table).splitlines())}
    assert read["FedCEO"]["P-loc, %"] == read["FedCEO"]["difference low"] == read["FedProx"]["ε, outsider"] == ""
    assert float(read["UDP-FedAvg"]["best, %"]) == 71.0 and float(read["UDP-FedAvg"]["best, % sd"]) == 1.0


def test_what_all_rows_share_is_in_the_caption() -> None:
    table = paper_table([made_group(A, epsilon=1.99991), made_group(B, method="fedceo", epsilon=1.99991)])
    assert [column.head for column in table.columns] == ["method", "last, %", "difference"]
    for words in ("data digits", "clients 30", "cohort 6", "rounds 12", "user-level, distributed noise", "σ 0.5",
                  "ε is 2 for the outsider, of one user at δ 1e-5", "void for whoever knows the seed"):  # fmt: skip
        assert words in table.caption
    apart = paper_table([made_group(A), made_group(B, method="fedceo", epsilon=3.0)])
    assert "ε, outsider" in [column.head for column in apart.columns]


@given(st.floats(1e-4, 1e4))
def test_no_epsilon_is_printed_too_small(epsilon: float) -> None:
    groups = [made_group({0: 1.0}, epsilon=epsilon), made_group({0: 2.0}, method="fedceo", epsilon=1e5)]
    shown = rows_of(to_latex(paper_table(groups, ["outsider"])))["UDP-FedAvg"][0]
    assert float(shown) >= epsilon


def test_differences_to_a_method_of_choice() -> None:
    groups = [made_group(A), made_group(B, method="fedceo")]
    rows = rows_of(to_latex(paper_table(groups, against="UDP-FedAvg")))
    assert rows["FedCEO"][1] == "$+$0.50 [$+$0.25, $+$0.75]" and rows["UDP-FedAvg"][1] == "--"
    with pytest.raises(UsageError, match="--against: 'FedAvg', expected one of: UDP-FedAvg; FedCEO"):
        paper_table(groups, against="FedAvg")


def test_any_field_can_be_a_column() -> None:
    groups = [
        made_group(A, train={"learning_rate": 0.1}),
        made_group(B, method="fedceo", train={"learning_rate": 0.03}),
    ]
    latex = to_latex(paper_table(groups, ["last", "train.learning_rate"]))
    assert r"0.1\phantom{3}" in latex and "learning rate" in latex
    with pytest.raises(UsageError, match=r"--columns: 'train\.rate', expected any of last, "):
        paper_table(groups, ["train.rate"])


def room_behind_the_point(cell: str) -> int:
    """The characters behind the first point, with those of phantoms."""
    plain = re.sub(r"\\(textbf|phantom)\{|[{}]", "", cell.replace(r"$\pm$", "±"))
    return len(plain.split(".", 1)[1])


@given(st.lists(st.lists(st.floats(0, 100), min_size=1, max_size=4), min_size=2, max_size=5))
def test_decimal_points_stand_below_each_other(accuracies: list[list[float]]) -> None:
    """Behind the point of the first number every cell takes the same room, with phantoms counted."""
    blocks = tuple(
        (("method",), (sum(each) / len(each), max(each) - min(each)) if len(each) > 1 else (each[0],))
        for each in accuracies
    )
    look = Column("accuracy", ("sd",), (" ± ", ""), lambda value: f"{value:.2f}", best=max)
    latex = to_latex(Table((Column("method", is_text=True), look), (blocks,), ""))
    cells = [line.removesuffix(r" \\").split(" & ")[1] for line in latex.splitlines() if line.startswith("method &")]
    assert len({room_behind_the_point(cell) for cell in cells[1:]}) == 1


TEXT = st.text(st.characters(codec="utf-8"), max_size=30)


@given(TEXT)
def test_no_name_can_break_out_of_a_cell(name: str) -> None:
    """Without what the escapes are made of, nothing is left that LaTeX would act upon."""
    left = escaped(name)
    for word in ("textbackslash", "textasciitilde", "textasciicircum", "textless", "textgreater", "textbar"):
        left = left.replace(rf"\{word}{{}}", "")
    left = left.replace("-{}", "").replace(r"$\pm$", "").replace("$-$", "").replace("$+$", "")
    left = re.sub(r"\$\\(sigma|varepsilon|delta)\$", "", left)
    left = re.sub(r"\\[&%_#${}]", "", left)
    assert not set(left) & set("\\&%_#${}~^\n\r\t") and "--" not in left


@given(TEXT, TEXT)
def test_a_name_stays_in_its_row_of_markdown(name: str, caption: str) -> None:
    table = Table((Column("method", is_text=True),), ((((name,),),),), caption)
    lines = to_markdown(table).split("\n")
    assert len(re.findall(r"(?<!\\)\|", lines[2].replace("\\\\", ""))) >= 2
    assert lines[2].startswith("| ") and lines[2].endswith(" |") and lines[3] == ""


NASTY = [r"\input{/etc/passwd}", "[2pt] & % $x_1^2$ #~{}", "*{9}{c}", "a--b<c>|d", "100 % ± 3 ε", "BLUR + LUS"]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path: Path) -> None:
    look = Column("accuracy", ("low", "high"), (" [", ", ", "]"), lambda value: f"{value:+.2f}", best=max)
    blocks = tuple(((name,), (1.5 * k, -3.0, 12.0)[: k % 3 + 1]) for k, name in enumerate(NASTY))
    table = to_latex(Table((Column("name", is_text=True), look), (blocks, blocks[::-1]), " ".join(NASTY)))
    document = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n" + table + "\\end{document}\n"
    (tmp_path / "t.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_a_results_file_is_read_as_its_folders_are(runs: Path, tmp_path: Path) -> None:
    from fedceo.simulation.folder import RunFolder
    from fedceo.studies.cells import Cell
    from fedceo.studies.results import results_of

    folders = [runs / "fedceo" / "seed-0", runs / "fedceo" / "seed-1", runs / "free"]
    cells = [Cell(folder.parent.name, RunFolder(folder).experiment(), folder) for folder in folders]
    entries = results_of(cells, [RunFolder(folder).result() for folder in folders], {})
    (tmp_path / "results.json").write_text(json.dumps(entries))
    one, other = (paper_table(group_runs(load_runs(paths))) for paths in (folders, [tmp_path / "results.json"]))
    assert to_latex(one) == to_latex(other)
