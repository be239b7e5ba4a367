"""Progress on standard error, while rounds are trained, files fetched or records attacked.

A terminal gets a bar that fits it, anything else (a file, a batch system, CI) one plain line a measurement.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, Task, TextColumn, TransferSpeedColumn
from rich.status import Status
from rich.table import Column
from rich.text import Text

from fedceo.accounting.printed import rounded_up
from fedceo.simulation.callbacks import Callback
from fedceo.simulation.pace import Pace, line_of, minutes
from fedceo.tasks import is_measured, metric_of
from fedceo.terminal.tables import console

Advance = Callable[[dict[str, Any]], None]

LONGEST_BAR = 40
SHORTEST_BAR = 5


class Screen(Callback):
    """Shows a run's measurements by a function that `progress` gave."""

    def __init__(self, advance: Advance) -> None:
        self._advance = advance

    def on_measurement(self, metrics: dict[str, Any]) -> None:
        self._advance(metrics)


@contextmanager
def progress(total: int, name: str = "training", quiet: bool = False, of_rounds: bool = True) -> Iterator[Advance]:
    """Progress over rounds; the function yielded is to be called with every round's metrics.

    of_rounds: whether the steps are rounds, of which plain lines tell those that are measured; whole runs are all told.
    """
    pace, out = Pace(total), console(stderr=True)
    if quiet or not out.file.isatty():  # not out.is_terminal, which FORCE_COLOR makes true in notebooks
        yield (lambda metrics: None) if quiet else _plain_lines(pace, name, of_rounds)
        return
    bar = Progress(_Line(pace), console=out)
    task = bar.add_task(name, total=total, metrics={})

    def advance(metrics: dict[str, Any]) -> None:
        pace.go_on(metrics["round"])
        shown: dict[str, Any] = {key: metrics[key] for key in ("epsilon",) if key in metrics}
        if is_measured(metrics):
            metric = metric_of(metrics)
            shown |= {"name": f"test {metric.words}", "value": metric.show(metrics[f"test_{metric.name}"])}
        if "epsilon" in shown:
            shown["epsilon_round"] = metrics["round"]
        bar.update(task, completed=metrics["round"], metrics=bar.tasks[0].fields["metrics"] | shown)
        bar.start()

    with _stopping(bar):
        yield advance


def _plain_lines(pace: Pace, name: str, of_rounds: bool) -> Advance:
    def advance(metrics: dict[str, Any]) -> None:
        pace.go_on(metrics["round"])
        if not of_rounds:
            print(f"{name}: {pace.step} of {pace.total}, {pace.in_words()}", file=sys.stderr, flush=True)
        elif pace.is_due(is_measured(metrics)):
            print(f"{name}: {line_of(metrics, pace)}", file=sys.stderr, flush=True)

    return advance


class _Line(ProgressColumn):
    """A whole line of progress in the longest form that fits the terminal, so that no number is ever cut."""

    def __init__(self, pace: Pace) -> None:
        super().__init__(Column(no_wrap=True))
        self._pace = pace

    def render(self, task: Task) -> Text:
        room = console(stderr=True).width
        beside, alone = self._forms(task)
        fitting = [form for form in beside if len(form) + SHORTEST_BAR < room] + [
            form for form in alone if len(form) <= room
        ]
        words = fitting[0] if fitting else ""
        spare = min(room - len(words) - 1, LONGEST_BAR)
        if spare < SHORTEST_BAR:
            return Text(words)
        done = int(spare * task.completed / task.total) if task.total else 0
        bar = (("━" * done, "bar.complete"), ("━" * (spare - done), "bar.back"))
        return Text.assemble(*bar, f" {words}")

    def _forms(self, task: Task) -> tuple[list[str], list[str]]:
        """The same in ever fewer letters: forms beside which there must be a bar, and forms that can do without."""
        found, left = task.fields["metrics"], self._pace.left
        count = f"{task.completed:.0f}/{task.total:.0f}"
        value = found.get("value", "")
        epsilon = f"epsilon {rounded_up(found['epsilon']):g}" if "epsilon" in found else ""
        after = f"{epsilon} after round {found['epsilon_round']}" if epsilon else ""
        remaining = "" if left is None else f"{minutes(left)} left"
        long = (task.description, count, value and f"{found['name']} {value}", after, self._pace.in_words())
        short = (task.description, count, value, epsilon, remaining)
        alone = (short[1:], (count, value, remaining), (count, remaining), (count,))
        return [_joined(long), _joined(short)], [_joined(form) for form in alone]


def _joined(parts: Sequence[str]) -> str:
    return "  ".join(filter(None, parts))


@contextmanager
def downloads() -> Iterator[Callable[[str, int, int | None], None]]:
    """A progress bar for each file; the function yielded is to be called with a file's name, bytes done and total."""
    columns = (_words("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=console(stderr=True))
    tasks: dict[str, Any] = {}

    def advance(name: str, done: int, total: int | None) -> None:
        bar.start()
        if name not in tasks:
            tasks[name] = bar.add_task(name)
        bar.update(tasks[name], completed=done, total=total)

    with _stopping(bar):
        yield advance


def waiting(words: str) -> Status:
    """A context in which the words stand on standard error, where that is a terminal."""
    return console(stderr=True).status(Text(words))


def _words(form: str) -> TextColumn:
    """A column of text as it is; a column reads markup, whatever its console does."""
    return TextColumn(form, markup=False)


@contextmanager
def _stopping(bar: Progress) -> Iterator[None]:
    """Stop a bar at the end, if its first step has started it: a refusal before that prints one line and no bar."""
    try:
        yield
    finally:
        if bar.live.is_started:
            bar.stop()
