"""Figures by the names that `fedceo figure` knows: those of the paper, and what else is drawn from runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.image import imread

from fedceo.errors import UsageError
from fedceo.report.attachments import FOREIGN
from fedceo.report.comparison import named
from fedceo.report.curves import FIELDS, accuracy_curves, forest, runtime, trade_off
from fedceo.report.loading import LoadedRun, group_runs
from fedceo.report.stacks import class_bars, singular_values, smoothness, survivors
from fedceo.report.style import Drawing, panels, styled
from fedceo.simulation.durable import read_json
from fedceo.simulation.folder import read_recording
from fedceo.simulation.recording import Recording

MEASURES = dict(zip(("G", "P-loc", "P-glob", "P-dist", "worst"), FIELDS, strict=True))
"""The metric of each accuracy by its short name."""

ONLY_OF: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "measure": ("G", ("accuracy",)),
    "observer": ("outsider", ("trade-off",)),
    "round": (None, ("smoothness", "class-bars", "singular-values")),
    "layer": (None, ("smoothness", "singular-values", "survivors")),
}
"""What only some figures go by: what it is where nobody asks, and these figures."""


@dataclass(frozen=True)
class Wanted:
    """What a figure is drawn of.

    Attributes:
        runs: finished or not.
        renamed: "NAME=other name", for methods.
        observer: whose epsilon.
        measure: a name of MEASURES.
        round: the recorded round; None: the last one, of those that smooth where there are any.
        layer: the recorded layer; None: the one that the figure is usually drawn of.
    """

    runs: Sequence[LoadedRun]
    renamed: Sequence[str] = ()
    observer: str = "outsider"
    measure: str = "G"
    round: int | None = None
    layer: str | None = None


def draw(name: str, wanted: Wanted) -> Drawing:
    """The figure of this name."""
    if name not in FIGURES:
        raise UsageError(f"NAME: {name!r}, expected one of {', '.join(FIGURES)}")
    if wanted.measure not in MEASURES:
        raise UsageError(f"--measure: {wanted.measure!r}, expected one of {', '.join(MEASURES)}")
    for field, (usual, figures) in ONLY_OF.items():
        if getattr(wanted, field) != usual and name not in figures:
            raise UsageError(f"--{field}: is for {', '.join(figures)}, and the figure is {name}")
    return FIGURES[name](wanted)


def _recordings(wanted: Wanted) -> list[Recording]:
    """The recorded rounds of the only run that has any."""
    recorded = [run for run in wanted.runs if run.recordings]
    if not recorded:
        raise UsageError("RUN: no round is recorded; the experiment file's [record] asks for it")
    if len(recorded) > 1:
        raise UsageError(f"RUN: {len(recorded)} runs have recorded rounds, expected one, such as {recorded[0].path}")
    return [read_recording(path) for path in recorded[0].recordings]


def _recording(wanted: Wanted) -> Recording:
    found = _recordings(wanted)
    if wanted.round is None:
        return ([recording for recording in found if recording.thresholds] or found)[-1]
    chosen = [recording for recording in found if recording.round == wanted.round]
    if not chosen:
        known = ", ".join(str(recording.round) for recording in found)
        raise UsageError(f"--round: {wanted.round} is not recorded, expected one of {known}")
    return chosen[0]


@styled
def attack(wanted: Wanted) -> Drawing:
    """A figure of the reconstructions of every run's attacks, with the PSNR that they reach.

    Returns:
        data["NAME"], (1,): the median PSNR in dB of each.
    """
    found = []
    for run in wanted.runs:
        for path in sorted((run.path / "attack").rglob("attack.json")):
            pictures = path.parent / "attack.png"
            try:
                row = next(each for each in read_json(path, expected=None)["rows"] if each["name"] == "attack")
                found.append((run, row["holds"], float(row["psnr"]["value"]), imread(pictures)))
            except (StopIteration, OSError, *FOREIGN):
                raise UsageError(f"{path}: not what fedceo attack --out writes") from None
    if not found:
        raise UsageError("attack: no run has one in its folder; fedceo attack RUN --out RUN/attack makes it")
    names = {id(run): group.name for group in named(group_runs(wanted.runs), wanted.renamed) for run in group.runs}
    heights = [picture.shape[0] / picture.shape[1] for *_, picture in found]
    width = 6.2
    figure, axes = panels(len(found), 1, width, width * sum(heights) + 0.3 * len(found), height_ratios=heights)
    data = {}
    for panel, (run, holds, psnr, picture) in zip(axes[:, 0], found, strict=True):
        name = names.get(id(run), run.name)
        data[f"{name}, {holds}"] = np.array([psnr])
        panel.imshow(picture, interpolation="none")
        panel.set_title(f"{name}: {holds}, median PSNR {psnr:.1f} dB", loc="left")
        panel.set_axis_off()
    return Drawing(figure, data, "Reconstructions from the start of each attack to its end, with PSNR below each.")


FIGURES: dict[str, Callable[[Wanted], Drawing]] = {
    "accuracy": lambda wanted: accuracy_curves(
        named(group_runs(wanted.runs), wanted.renamed), MEASURES[wanted.measure]
    ),
    "trade-off": lambda wanted: trade_off(group_runs(wanted.runs), "epsilon", wanted.observer, wanted.renamed),
    "trade-off-sigma": lambda wanted: trade_off(group_runs(wanted.runs), "sigma", wanted.observer, wanted.renamed),
    "forest": lambda wanted: forest(group_runs(wanted.runs), wanted.renamed),
    "runtime": lambda wanted: runtime(named(group_runs(wanted.runs), wanted.renamed)),
    "smoothness": lambda wanted: smoothness(_recording(wanted), wanted.layer),
    "class-bars": lambda wanted: class_bars(_recording(wanted)),
    "singular-values": lambda wanted: singular_values(_recording(wanted), wanted.layer),
    "survivors": lambda wanted: survivors(_recordings(wanted), wanted.layer),
    "attack": attack,
}
