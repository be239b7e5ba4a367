"""The fields of the experiment file in words: values, default and meaning, from the settings themselves."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic_core import PydanticUndefined

from fedceo.experiment.base import Section
from fedceo.experiment.file import Experiment
from fedceo.experiment.method_table import OWN, known_methods, settings_of
from fedceo.experiment.registry import MECHANISMS
from fedceo.experiment.sections import known_mechanism

TOP = "(top level)"
"""The name of the section of fields that are in no table."""
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


@dataclass(frozen=True)
class Described:
    """A field in words; what can stand in a file is between backticks.

    Attributes:
        values: the choices, or the type with its bounds.
        default: "left out" where the field may be, and empty where it must be given.
    """

    name: str
    values: str
    default: str
    meaning: str


def described_sections() -> dict[str, list[Described]]:
    """The fields of every table by its name, those of [method] by "method.NAME", in the order of the file."""
    found: dict[str, list[Described]] = {TOP: []}
    for name, field in Experiment.model_fields.items():
        if name == "method":
            found |= {f"method.{each}": _described(settings_of(each).model_fields) for each in (*known_methods(), OWN)}
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found[name] = _described(field.annotation.model_fields)
        else:
            found[TOP] += _described({name: field})
    return found


def places_of(name: str) -> list[str]:
    """The places, such as "train.rounds", of all fields of this name; those of methods are one place."""
    return list(dict.fromkeys(_places_of(name)))


def _places_of(name: str) -> Iterator[str]:
    for section, fields in described_sections().items():
        if any(field.name == name for field in fields):
            yield name if section == TOP else f"{section.partition('.')[0]}.{name}"


def _described(fields: Mapping[str, Any]) -> list[Described]:
    found = []
    for name, field in fields.items():
        meaning = " ".join((field.description or "").split())
        found.append(Described(name, _values(field.annotation, field.metadata), _default(field), meaning))
    return found


def _values(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """The choices, or the type with its bounds; that a field may be left out is in its default."""
    if get_origin(annotation) is Annotated:
        annotation, *rest = get_args(annotation)
        return _values(annotation, [bound for field in rest for bound in field.metadata])
    if any(getattr(check, "func", None) is known_mechanism for check in metadata):
        return ", ".join(f"`{name}`" for name in MECHANISMS)
    options = [option for option in get_args(annotation) if option is not type(None)]
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{option}`" for option in options)
    if get_origin(annotation) is list:
        return f"list of {_values(options[0])}"
    if options:
        return " or ".join(_values(option, metadata) for option in options)
    return ", ".join([annotation.__name__, *_bounds(metadata)])


def _bounds(metadata: Sequence[Any]) -> list[str]:
    """The bounds that pydantic checks, in words."""
    found = [(words, getattr(bound, name, None)) for bound in metadata for name, words in BOUNDS.items()]
    return [f"{words} {_shown(limit)}" for words, limit in found if limit is not None]


def _shown(limit: float) -> str:
    return "2^63" if limit == 2**63 else f"{limit:g}"


def _default(field: Any) -> str:
    if field.default is PydanticUndefined:
        return ""
    return "left out" if field.default is None else f"`{field.default}`"
