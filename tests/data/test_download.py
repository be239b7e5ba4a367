"""`get` against a server on this machine."""

import gzip
import hashlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fedceo.data import known
from fedceo.data.dataset import DataSet, Download
from fedceo.data.download import get
from fedceo.data.sets.mnist import MNIST
from fedceo.errors import UsageError
from tests.support.published_layouts import idx

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@dataclass
class Server:
    """Serves files by name; `broken` answers stop half-way, and not all servers can resume."""

    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    broken: int = 0
    resumes: bool = True
    address: str = ""


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, wanted = self.path.lstrip("/"), self.headers.get("Range")
            state.asked.append((name, wanted))
            if name not in state.files:
                self.send_error(404)
                return
            content = state.files[name]
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.resumes else 0
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            end = len(content)
            if state.broken:
                state.broken, end = state.broken - 1, start + (end - start) // 2
            self.wfile.write(content[start:end])

        def log_message(self, *given: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield state
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture
def mnist(server: Server, monkeypatch: pytest.MonkeyPatch) -> DataSet:
    """A small MNIST that the server has."""
    pytest.importorskip("pooch")
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr("fedceo.data.download.BLOCK", 512)
    values = [np.random.default_rng(0).integers(0, 256, (20, 28, 28)), np.arange(20) % 10] * 2
    for name, each in zip(NAMES, values, strict=True):
        server.files[f"{name}.gz"] = gzip.compress(idx(each))
    md5 = {name: hashlib.md5(content).hexdigest() for name, content in server.files.items()}
    downloads = tuple(Download(f"{server.address}/{name}", f"mnist/{name}", md5[name]) for name in md5)
    monkeypatch.setattr(MNIST, "published", {})
    monkeypatch.setattr(MNIST, "downloads", downloads)
    return known("mnist")


def test_fetched_files_can_be_loaded_and_are_not_fetched_twice(tmp_path: Path, server: Server, mnist: DataSet) -> None:
    seen = []
    files = get(mnist, tmp_path, lambda name, done, total: seen.append((name, done, total)))
    assert [path.name for path in files] == [f"{name}.gz" for name in NAMES]
    assert all(path.read_bytes() == server.files[path.name] for path in files)
    assert len(mnist.load(tmp_path).y) == 20
    size = len(server.files[f"{NAMES[0]}.gz"])
    assert (f"{NAMES[0]}.gz", size, size) in seen
    get(mnist, tmp_path)
    assert len(server.asked) == 4


def test_a_broken_download_goes_on_where_it_stopped(tmp_path: Path, server: Server, mnist: DataSet) -> None:
    server.broken = 1
    get(mnist, tmp_path)
    (first, start), (second, rest) = server.asked[:2]
    assert first == second == f"{NAMES[0]}.gz" and start is None and rest is not None
    assert 0 < int(rest[len("bytes=") : -1]) <= len(server.files[first]) // 2
    assert len(mnist.load(tmp_path).y) == 20 and not list(tmp_path.rglob("*.part"))


def test_the_next_time_too(tmp_path: Path, server: Server, mnist: DataSet) -> None:
    server.broken = 3
    with pytest.raises(UsageError, match="mnist: cannot be fetched") as caught:
        get(mnist, tmp_path)
    assert "\n" not in str(caught.value) and f"{server.address}/{NAMES[0]}.gz as {tmp_path}" in str(caught.value)
    assert [path.name for path in (tmp_path / "mnist").iterdir()] == [f"{NAMES[0]}.gz.part"]
    get(mnist, tmp_path)
    assert server.asked[3][1] is not None and len(mnist.load(tmp_path).y) == 20


def test_a_server_that_cannot_resume(tmp_path: Path, server: Server, mnist: DataSet) -> None:
    server.broken, server.resumes = 1, False
    get(mnist, tmp_path)
    assert len(mnist.load(tmp_path).y) == 20


def test_a_part_of_something_else(tmp_path: Path, server: Server, mnist: DataSet) -> None:
    for content in (b"x" * 100, b"x" * 10**6):  # shorter and longer than the file
        (tmp_path / "mnist").mkdir(exist_ok=True)
        (tmp_path / "mnist" / f"{NAMES[0]}.gz.part").write_bytes(content)
        get(mnist, tmp_path)
        assert len(mnist.load(tmp_path).y) == 20
        (tmp_path / "mnist" / f"{NAMES[0]}.gz").unlink()


def test_a_wrong_checksum_leaves_nothing(tmp_path: Path, server: Server, mnist: DataSet) -> None:
    server.files[f"{NAMES[0]}.gz"] = gzip.compress(b"something else")
    with pytest.raises(UsageError, match="mnist: cannot be fetched: MD5 hash of downloaded file") as caught:
        get(mnist, tmp_path)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "mnist").iterdir()) == [] and mnist.missing(tmp_path) is not None


def test_no_such_file_and_no_server(
    tmp_path: Path, server: Server, mnist: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files.clear()
    with pytest.raises(UsageError, match="cannot be fetched: 404"):
        get(mnist, tmp_path)
    monkeypatch.setattr(MNIST, "downloads", (Download("http://127.0.0.1:9/x", "mnist/x"),))
    with pytest.raises(UsageError, match=r"cannot be fetched: .*; put by hand http://127.0.0.1:9/x as"):
        get(mnist, tmp_path)


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(UsageError, match=r"needs the extra fedceo\[download\]; or put by hand https://www.cs.toronto"):
        get(known("cifar10"), tmp_path)
    with pytest.raises(UsageError, match="--root: not given"):
        get(known("cifar10"), None)
    with pytest.raises(UsageError, match="femnist: there is no file to fetch; what to put where: femnist/"):
        get(known("femnist"), tmp_path)
