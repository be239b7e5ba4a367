"""What the tables of the experiment file share: kinds of numbers, and mistakes as one line."""

from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

Fraction = Annotated[float, Field(ge=0.0, lt=1.0, strict=True)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False, strict=True)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]

Location = tuple[int | str, ...]
"""The names on the way to a field."""


def first_mistake(error: ValidationError) -> ErrorDetails:
    return min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")  # a misspelling explains the rest


def one_line(
    first: ErrorDetails,
    beside: Callable[[Location], Iterable[str]],
    within: Location = (),
    hidden: Collection[str] = (),
) -> str:
    """A mistake in a table: its field and what was expected.

    Args:
        beside: from the place of an unknown field to the names that are known there.
        within: where the table itself lies.
        hidden: parts of places that no experiment file has.
    """
    place = ".".join(str(part) for part in (*within, *first["loc"]) if part not in hidden)
    if first["type"] == "extra_forbidden":
        near = get_close_matches(str(first["loc"][-1]), beside(first["loc"]), n=1)
        return f"{place}: unknown field" + (f", did you mean {near[0]}?" if near else "")
    if first["type"] == "missing":
        return f"{place}: missing"
    message = first["msg"].removeprefix("Value error, ").splitlines()[0]
    shown = first["input"]
    if not place or isinstance(shown, dict):
        return f"{place}: {message}" if place else message
    return f"{place}: {message}, got {shown!r}"


class Section(BaseModel):
    """A table of the experiment file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
