"""Writes docs/recommend.md from the rules of `fedceo recommend`.

python tools/pages/recommend_page.py
"""

import json
import textwrap
from pathlib import Path
from typing import Any

from fedceo.studies.recommend import rules

ROOT = Path(__file__).parents[2]
HEAD = """# What to run

    fedceo recommend --clients 1000 --records 50 --epsilon 2 --shape 3x32x32 > mine.toml
    fedceo run mine.toml

`fedceo recommend` takes what somebody knows of a federation and prints an experiment file: its choices with their
reasons, the noise multiplier and the epsilon of every observer, as comments, and the settings, ready to run. Nothing is
trained for it and no data are read: data of the same shape, or else of another, stand in until `[data]` names yours.
Where no rule leaves a signal above the noise, the answer is one line that says how much noise it would take, and exit
code 2.

[Recipes](../experiments/README.md#recipes) are files of the same kind, by hand. What choosing among several of them
costs is [counted](privacy.md#the-epsilon-of-a-study) by `fedceo tune --private`. This page is written by
`tools/pages/recommend_page.py` from `src/fedceo/studies/recommend.toml`.
"""


def page() -> str:
    """The rules with what they rest on."""
    known = rules()
    limit, cohort = known["limits"], known["cohort"]
    regimes = (f"If {each['when']}. {each['why']} Sets {_listed(each)}." for each in (known["user"], known["record"]))
    lines = [HEAD, "## Who is protected", ""]
    lines += [textwrap.fill(words, 120, initial_indent="- ", subsequent_indent="  ") for words in regimes]
    lines += ["- If neither: no recommendation.", ""]
    lines += [textwrap.fill(f"The limit is {limit['noise']:g}. {limit['why']}", 120), ""]
    lines += ["## How many a round", "", textwrap.fill(cohort["why"], 120), ""]
    lines += [
        "## Model, rate and clip",
        "",
        "The first row that fits counts: its kind of records (images have 16x16 pixels or more), at least so many",
        "clients, at least so many groups of a cohort's size among them, and at most such an epsilon.",
        "",
        "| records | clients from | groups from | epsilon up to | settings | rests on |",
        "|---|---|---|---|---|---|",
    ]
    for row in known["settings"]:
        up_to = "any" if row["epsilon"] >= 1e9 else f"{row['epsilon']:g}"
        kind, least = "images" if row["image"] else "others", f"{row.get('clients', 2):,}"
        lines.append(f"| {kind} | {least} | {row.get('groups', 1)} | {up_to} | {_listed(row)} | {row['why']} |")
    return (
        "\n".join([*lines, "", "Where records are protected the model is that of the table, and no more of it."]) + "\n"
    )


def _listed(table: dict[str, Any]) -> str:
    """The fields of the experiment that a rule sets, by their full names."""
    sections = {name: fields for name, fields in table.items() if isinstance(fields, dict)}
    found = ((f"{section}.{name}", value) for section, fields in sections.items() for name, value in fields.items())
    return ", ".join(f"`{name} = {json.dumps(value)}`" for name, value in found)


if __name__ == "__main__":
    (ROOT / "docs" / "recommend.md").write_text(page())
