"""`fedceo release`: a finished run's model with its card, safe to pass on."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedceo.cli.options import Json


def release(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for the model and its card.")],
    as_json: Json = False,
) -> None:
    """Write the released model and its card, and nothing that no epsilon covers."""
    from fedceo.simulation.release import REMOVABLE
    from fedceo.simulation.release import release as write_release

    card = write_release(run, out)
    if card["removable_noise"]:
        advice = 'Train with privacy.randomness = "system" what is to be passed on.'
        print(f"fedceo: warning: {REMOVABLE} {advice}", file=sys.stderr)
    if as_json:
        print(json.dumps(card))
        return
    models = "model.safetensors, average.safetensors" if "average_test_accuracy" in card else "model.safetensors"
    print(f"{out}: {models}, card.json and README.md")
    if card["left_out"]:
        print(f"left out, because clients keep them for themselves: {', '.join(card['left_out'])}")
