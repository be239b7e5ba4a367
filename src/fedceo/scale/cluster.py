"""The Ray that a run uses, and one line for everything that can be wrong with it.

If this process has initialised Ray, the run uses that and leaves it as it is; a running cluster is joined and left;
otherwise Ray is started on this machine and shut down at the end. Its usage statistics, dashboard and logs stay off.
"""

import io
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TextIO

import torch

from fedceo.errors import UsageError

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else every start warns of a coming change
os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # else reports are kept back and printed at the end, by this thread
try:
    ray: Any = import_module("ray")
except ImportError:
    raise UsageError("--engine ray: needs the extra fedceo[ray]") from None

CONNECT_SECONDS = 5.0
"""Seconds that an address may take to answer; Ray itself tries for minutes and prints while it does."""

HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The first bytes of an HTTP/2 connection, Ray's protocol; a server answers with a frame whose fourth byte is 4."""


REPORTER = "ray_listen_error_messages"
"""Name of the thread in which Ray prints to standard output that a worker or another part of it has died."""


@dataclass(frozen=True)
class Workers:
    """Ray workers that train the cohort, each with one CPU core or a GPU or a part of one.

    Attributes:
        count: the number of workers; None: as many as there is room for.
        address: HOST:PORT of a running cluster, or "auto" for the one on this machine; None: the one that RAY_ADDRESS
            names, or a new one on this machine.
        gpus_per_worker: up to 1, less where workers divide one; None: 1 where the run's device is a GPU, else 0.
    """

    count: int | None = None
    address: str | None = None
    gpus_per_worker: float | None = None

    def aside(self, stream: TextIO) -> TextIO:
        """The stream for what is printed meanwhile, without Ray's reports of its dead, pages of its log among them."""
        return _WithoutReports(stream)

    def gpus(self, device: torch.device) -> float:
        """The GPUs of one worker, checked against the device that the run trains on."""
        gpus = float(device.type == "cuda") if self.gpus_per_worker is None else self.gpus_per_worker
        if not 0 <= gpus <= 1:
            raise UsageError(f"--gpus-per-worker: {gpus:g}, expected 0 to 1, since a worker trains on one GPU")
        if device.type == "cuda" and gpus == 0:
            raise UsageError("--gpus-per-worker: 0, but train.device means a GPU; say --set train.device=cpu")
        if device.type != "cuda" and gpus > 0:
            raise UsageError(f"--gpus-per-worker: {gpus:g}, but train.device means {device.type} on this machine")
        return gpus


class _WithoutReports(io.StringIO):
    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def write(self, text: str) -> int:
        return len(text) if threading.current_thread().name == REPORTER else self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()


@contextmanager
def connected(workers: Workers, device: torch.device) -> Iterator[tuple[int, float]]:
    """A connection to Ray while the context lasts; yields the number of workers to start, and the GPUs of each."""
    if workers.count is not None and workers.count < 1:
        raise UsageError(f"--workers: {workers.count}, expected at least 1")
    gpus = workers.gpus(device)
    was_initialised = ray.is_initialized()
    if was_initialised and workers.address is not None:
        raise UsageError("--ray-address: this process uses Ray already; leave the address out to use the same one")
    if not was_initialised:
        _begin(workers)
    try:
        yield _room(workers.count, gpus), gpus
    finally:
        if not was_initialised:
            ray.shutdown()


def _begin(workers: Workers) -> None:
    address = workers.address or os.environ.get("RAY_ADDRESS")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        # more workers than cores are slow, not wrong
        ray.init("local", num_cpus=max(cores, workers.count or 0), include_dashboard=False, **quiet)
        return
    _check_address(address)
    try:
        ray.init(address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"--ray-address: {address}, but Ray could not join it: {reason}") from None


def _check_address(address: str) -> None:
    """Refuse a text that is no address of a cluster, and an address at which no cluster answers."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise UsageError(f"--ray-address: {address!r}, expected HOST:PORT of a cluster's head, or auto")
    try:
        with socket.create_connection((host, int(port)), CONNECT_SECONDS) as connection:
            connection.sendall(HELLO)
            answers = os.environ.get("RAY_USE_TLS") == "1" or connection.recv(9)[3:4] == b"\4"
    except (OSError, OverflowError):
        answers = False
    if not answers:
        raise UsageError(f"--ray-address: no cluster answers at {address}; start one with: ray start --head")


class RayGoneError(UsageError):
    """Ray itself has ended in mid-run, not only a worker, which would be replaced."""


def vital_parts() -> dict[str, str]:
    """HOST:PORT of the processes without which this process has no Ray, by name."""
    here = next(node for node in ray.nodes() if node["NodeID"] == ray.get_runtime_context().get_node_id())
    raylet = f"{here['NodeManagerAddress']}:{here['NodeManagerPort']}"
    return {"GCS": ray.get_runtime_context().gcs_address, "raylet": raylet}


def check_alive(parts: Mapping[str, str]) -> None:
    """Refuse to go on without one of the vital parts.

    Ray would wait for it, and end this process without a word after a minute.
    """
    for name, address in parts.items():
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        except OSError:
            raise RayGoneError(f"Ray is gone: its {name} at {address} has ended") from None


def _room(wanted: int | None, gpus: float) -> int:
    """The number of workers to start: as many as wanted, or as many as the machines have room for."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    found = sum(node.get("GPU", 0.0) for node in alive)
    if gpus > found:
        raise UsageError(f"--gpus-per-worker: {gpus:g}, but Ray has {found:g} GPUs")
    room = sum(min(int(node.get("CPU", 0.0)), int(node.get("GPU", 0.0) / gpus) if gpus else 2**31) for node in alive)
    if room < (wanted or 1):
        need = f"1 CPU and {gpus:g} GPUs" if gpus else "1 CPU"
        raise UsageError(f"--workers: {wanted or 1}, but Ray has room for {room} with {need} each")
    return wanted or room
