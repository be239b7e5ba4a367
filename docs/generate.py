"""Writes docs/experiment-file.md from the settings themselves, so that the page cannot say anything else.

python docs/generate.py
"""

from pathlib import Path
from typing import Any, get_args

from pydantic_core import PydanticUndefined

from fedceo import config

HEAD = """# The experiment file

One TOML file says everything that a run depends on. It is checked before anything is trained; a misspelt field is
refused with the nearest known name. `fedceo run FILE --set section.field=value` changes single fields. This page is
written by `docs/generate.py` from the settings in `src/fedceo/config.py`.

Rounds count from 1. Fields without a default must be given.
"""

METHODS = (config.FedAvg, config.FedCEO)


def page() -> str:
    parts = [HEAD, section("(top level)", {"seed": config.Experiment.model_fields["seed"]})]
    for name, field in config.Experiment.model_fields.items():
        if name == "method":
            parts += [section(f'[method], name = "{kind.__name__.lower()}"', kind.model_fields) for kind in METHODS]
        elif name != "seed":
            assert field.annotation is not None
            parts.append(section(f"[{name}]", field.annotation.model_fields))
    return "\n".join(parts)


def section(title: str, fields: dict[str, Any]) -> str:
    lines = [f"## {title}", "", "| field | values | default | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        meaning = " ".join((field.description or "").split())
        lines.append(f"| `{name}` | {values(field.annotation)} | {default(field)} | {meaning} |")
    return "\n".join(lines) + "\n"


def values(annotation: Any) -> str:
    options = get_args(annotation)
    if options and all(isinstance(option, str) for option in options):
        return ", ".join(f"`{option}`" for option in options)
    kinds = [getattr(kind, "__name__", str(kind)) for kind in (options or (annotation,))]
    plain = [
        str(get_args(kind)[0].__name__) if get_args(kind) else name for kind, name in zip(options, kinds, strict=False)
    ]
    return " or ".join(kind for kind in (plain or kinds) if kind != "NoneType")


def default(field: Any) -> str:
    if field.default is PydanticUndefined:
        return ""
    return "left out" if field.default is None else f"`{field.default}`"


if __name__ == "__main__":
    Path(__file__).with_name("experiment-file.md").write_text(page())
