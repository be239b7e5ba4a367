"""`fedceo report`: one page about runs."""

from pathlib import Path
from typing import Annotated

import typer

from fedceo.errors import UsageError


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("report.html"),
    observer: Annotated[
        str, typer.Option(help="Whose epsilon accuracy is drawn against: outsider, participant, server or client.")
    ] = "outsider",
    public: Annotated[
        bool, typer.Option("--public", help="Leave out everything that no epsilon covers: a page to be passed on.")
    ] = False,
) -> None:
    """Write one page about runs, which opens in a browser without a network."""
    try:
        from fedceo.report.page import write_report
    except ModuleNotFoundError as error:
        if error.name not in ("jinja2", "plotly"):
            raise
        raise UsageError(f"report: needs {error.name}, from the extra fedceo[report]") from None

    page = write_report(runs, out, observer, public=public)
    print(f"{page}, {page.stat().st_size / 1e6:.1f} MB")
