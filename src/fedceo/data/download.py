"""Downloads of published files, with the optional extra fedceo[download].

Pooch compares checksums, tries again, and moves a file to its final path only when it is complete and correct.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedceo.data.dataset import DataSet, Download
from fedceo.data.files import first_line
from fedceo.errors import UsageError

BLOCK = 2**16
PATIENCE = 30
"""Seconds of silence after which a server is given up."""

Progress = Callable[[str, int, int | None], None]
"""A function of a file's name, the bytes received so far, and the total, None where the server does not say."""


def get(data: DataSet, root: Path | None, on_progress: Progress = lambda name, done, total: None) -> list[Path]:
    """Fetch a data set's files into the folder of all data sets; files that are there with the right checksum stay.

    An interrupted download is resumed, at once or by the next call, if the server supports it.
    """
    if not data.downloads:
        raise UsageError(f"{data.name}: there is no file to fetch; what to put where: {data.where}")
    if root is None:
        raise UsageError("--root: not given, and the environment variable FEDCEO_DATA is not set; where is it to go?")
    by_hand = "; ".join(f"{each.address} as {root / each.path}" for each in data.downloads)
    try:
        import pooch
    except ImportError:
        raise UsageError(f"{data.name}: needs the extra fedceo[download]; or put by hand {by_hand}") from None
    store = pooch.create(
        path=root,
        base_url="",
        registry={each.path: each.md5 and f"md5:{each.md5}" for each in data.downloads},
        urls={each.path: each.address for each in data.downloads},
        retry_if_failed=2,
    )
    pooch.get_logger().setLevel("ERROR")
    try:
        return [Path(store.fetch(each.path, downloader=_Resuming(root, each, on_progress))) for each in data.downloads]
    except (ValueError, OSError) as error:  # pooch's for a wrong checksum; those of requests and of the disk
        raise UsageError(f"{data.name}: cannot be fetched: {first_line(error)}; put by hand {by_hand}") from None


class _Resuming:
    """A downloader for pooch that keeps the received part of a file and asks for the rest."""

    def __init__(self, root: Path, download: Download, on_progress: Progress) -> None:
        self.part = (root / download.path).with_name(f"{Path(download.path).name}.part")
        self.name, self.on_progress = Path(download.path).name, on_progress

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        import requests

        done = self.part.stat().st_size if self.part.is_file() else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
        with requests.get(url, headers=headers, stream=True, timeout=PATIENCE) as answer:
            if answer.status_code == 416:  # the server's file is shorter than our part: it is another file
                self.part.unlink()
            answer.raise_for_status()
            done = done if answer.status_code == 206 else 0
            length = answer.headers.get("Content-Length")
            total = None if length is None else done + int(length)
            with self.part.open("ab" if done else "wb") as file:
                for block in answer.iter_content(BLOCK):
                    file.write(block)
                    done += len(block)
                    self.on_progress(self.name, done, total)
        self.part.replace(output_file)
