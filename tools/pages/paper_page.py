"""Draws docs/paper-page.png: a page of a paper with a table and two figures as `fedceo table` and `figure` write them.

python tools/pages/paper_page.py

It needs pdflatex with booktabs and pdftoppm (on Debian: texlive-latex-base, texlive-latex-recommended, poppler-utils).
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def cells(setting: str, *methods: str) -> list[str]:
    return [f"--cell={setting}/{method}/tuned" for method in methods]


OF_THE_PAPER = ("udp-fedavg", "fedceo", "ppsgd", "centaur")
SHARDS = "results/paper/heterogeneity.json"
WRITERS = "results/beyond/femnist-1000.json"
COMMANDS = (
    ["table", SHARDS, *cells("non-iid/sigma-?.?", *OF_THE_PAPER), "--columns=last,difference,outsider",
     "-o", "table.tex"],
    ["figure", "accuracy", SHARDS, *cells("non-iid/sigma-1.5", *OF_THE_PAPER), "--size=3.2x2.6", "-o", "accuracy.pdf"],
    ["figure", "trade-off", WRITERS, *cells("*/distributed", "fedavg", "dp-fedsam", "fedceo-noise-aware", "centaur"),
     "--size=3.2x2.6", "-o", "trade-off.pdf"],
)  # fmt: skip
DOCUMENT = r"""
\documentclass[10pt]{article}
\usepackage[a4paper,margin=2.2cm]{geometry}
\usepackage{booktabs,graphicx}
\pagestyle{empty}
\setlength{\belowcaptionskip}{6pt}
\begin{document}
\section*{Experiments}
The table and both figures are files as \texttt{fedceo table} and \texttt{fedceo figure} write them; the document loads
\texttt{booktabs} and \texttt{graphicx}.
\input{table.tex}
\begin{figure}[h]
\begin{minipage}{0.49\textwidth}\includegraphics[width=\textwidth]{accuracy.pdf}
\caption{%s}\end{minipage}\hfill
\begin{minipage}{0.49\textwidth}\includegraphics[width=\textwidth]{trade-off.pdf}
\caption{%s}\end{minipage}
\end{figure}
\end{document}
"""
"""The page; the captions of the figures are those that the command prints."""


def main() -> None:
    for program in ("pdflatex", "pdftoppm"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is not installed")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "results").symlink_to(ROOT / "results")
        said = [_run(folder, sys.executable, "-m", "fedceo", *command) for command in COMMANDS]
        captions = tuple(each.partition(": ")[2].strip() for each in said[1:])
        (folder / "page.tex").write_text(DOCUMENT % captions)
        for _ in range(2):  # the numbers of figures are known the second time
            _run(folder, "pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex")
        _run(folder, "pdftoppm", "-r", "100", "-W", "827", "-H", "940", "-png", "-singlefile", "page.pdf", "page")
        shutil.copy(folder / "page.png", ROOT / "docs" / "paper-page.png")


def _run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr or done.stdout[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
