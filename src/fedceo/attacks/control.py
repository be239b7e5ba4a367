"""The control of an attack: whether the attack works at all where there is no privacy."""

from collections.abc import Mapping, Sequence
from typing import Any

CONTROL_FAILS = "the control fails: without privacy the attack finds nothing here, so its failure proves no privacy"


def control_fails(rows: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether the control's gain over the best single colour may be zero; None where there is no control."""
    gain = next((row.get("over_constant") for row in rows if row.get("name") == "control"), None)
    if gain is None:
        return None
    return bool((gain["value"] if gain["low"] is None else gain["low"]) <= 0)
