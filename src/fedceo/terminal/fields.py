"""What `fedceo fields` prints: every field of the experiment file with its values, default and meaning."""

from collections.abc import Mapping, Sequence

from rich.padding import Padding
from rich.text import Text

from fedceo.errors import UsageError
from fedceo.experiment.fields import TOP, Described, described_sections
from fedceo.experiment.grid import nearest
from fedceo.terminal.tables import console


def find_sections(name: str | None) -> dict[str, list[Described]]:
    """The sections that a user means: all, one table, all methods, or one method by its name."""
    sections = described_sections()
    if name is None:
        return sections
    wanted = name.strip("[]")
    found = {each: fields for each, fields in sections.items() if wanted in (each, *each.split(".", 1))}
    if not found:
        known = list(dict.fromkeys(part for each in sections if each != TOP for part in each.split(".", 1)))
        raise UsageError(f"SECTION: {name!r} is no section{nearest(wanted, known)}; known are {', '.join(known)}")
    return found


def show_fields(sections: Mapping[str, Sequence[Described]]) -> None:
    """Print the fields of some sections, each with a line of its values and its meaning below."""
    out = console()
    for section, fields in sections.items():
        table, _, method = section.partition(".")
        title = section if section == TOP else f'[{table}] name = "{method}"' if method else f"[{section}]"
        out.print(Text(title, "bold"))
        for field in fields:
            default = f"default {field.default}" if field.default.startswith("`") else field.default or "must be given"
            values = f"{field.values}; {default}".replace("`", "")
            out.print(Padding(Text.assemble((field.name, "cyan"), f": {values}"), (0, 0, 0, 2)))
            out.print(Padding(Text(field.meaning), (0, 0, 0, 6)))
