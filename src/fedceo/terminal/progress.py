"""Progress on standard error, while rounds are trained, files fetched or records attacked."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.status import Status
from rich.text import Text

from fedceo.terminal.monitor import Advance
from fedceo.terminal.tables import console, percent


@contextmanager
def progress(rounds: int, name: str = "training", quiet: bool = False) -> Iterator[Advance]:
    """A progress bar over rounds; the function yielded is to be called with every round's metrics."""
    columns = (
        _words("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        _words("{task.fields[accuracy]}"),
        _words("{task.fields[epsilon]}"),
        TimeRemainingColumn(compact=True),
    )
    bar = Progress(*columns, console=console(stderr=True), disable=quiet)
    task = bar.add_task(name, total=rounds, accuracy="", epsilon="")

    def advance(metrics: dict[str, Any]) -> None:
        bar.start()
        if "test_accuracy" in metrics:
            bar.update(task, accuracy=f"test accuracy {percent(metrics['test_accuracy'])}")
        if "epsilon" in metrics:
            bar.update(task, epsilon=f"epsilon {metrics['epsilon']:.3g} after round {metrics['round']}")
        bar.update(task, completed=metrics["round"])

    with _stopping(bar):
        yield advance


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
