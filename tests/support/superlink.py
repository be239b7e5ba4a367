"""A SuperLink and SuperNodes on loopback, with TLS and node keys, in processes that end with the test."""

import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

BIN = Path(sys.executable).parent


def certificates(folder: Path, name: str) -> None:
    """NAME-ca.crt, and NAME.crt with NAME.key for the server on loopback, which that authority signs."""
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} authority")])
    subjects = [issuer, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])]
    here = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))])
    for key, subject, file in zip(keys, subjects, (f"{name}-ca.crt", f"{name}.crt"), strict=True):
        authority = subject == issuer
        certificate = (
            x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[0].public_key()), critical=False)
        )
        certificate = certificate if authority else certificate.add_extension(here, critical=False)
        signed = certificate.sign(keys[0], hashes.SHA256())
        (folder / file).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").write_bytes(_private(keys[1]))


def node_key(folder: Path, name: str) -> Path:
    """A private key of a node, with the public one beside it."""
    key = ec.generate_private_key(ec.SECP384R1())
    (folder / name).write_bytes(_private(key, serialization.PrivateFormat.OpenSSH))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / f"{name}.pub").write_bytes(public)
    return folder / name


def _private(
    key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8
) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Link:
    """A SuperLink and what was started beside it.

    Attributes:
        folder: keys, certificates, Flower's own files and logs.
        simulation: nodes are simulated, without TLS and keys.
        port, control: where nodes connect, and where `flwr` does.
    """

    folder: Path
    simulation: bool = False
    port: int = field(default_factory=free_port)
    control: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self) -> None:
        home = self.folder / "flwr"
        home.mkdir()
        trust, program = "insecure = true", "flower-superlink"
        options = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(self.control)]
        options.append("--disable-runtime-dependency-installation")
        if not self.simulation:
            certificates(self.folder, "right")
            certificates(self.folder, "wrong")
            trust, program = f"root-certificates = {json.dumps(str(self.folder / 'right-ca.crt'))}", "fedceo"
            files = {"ca-certfile": "right-ca.crt", "certfile": "right.crt", "keyfile": "right.key"}
            options = [part for name, file in files.items() for part in (f"--ssl-{name}", str(self.folder / file))]
            options += ["--database", str(self.folder / "state.db"), "--control-port", str(self.control)]
            options = ["flower", "superlink", "--host", "127.0.0.1", "--port", str(self.port), *options]
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.control}"\n{trust}\n'
        )
        self.spawn("superlink", program, *options)
        self.wait(lambda: "running on" in self.log("superlink"), "the SuperLink to listen", "superlink")

    def spawn(self, name: str, program: str, *options: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen([BIN / program, *options], env=self._env(), stdout=log, stderr=log, cwd=cwd)
        self.processes[name] = process
        return process

    def node(
        self, number: int, key: Path, app: Path | None = None, authority: str = "right", name: str | None = None
    ) -> str:
        """Start a SuperNode that runs an app, or any app if none is given; returns the name of its process."""
        name = name or f"node-{number}"
        options = [
            "--superlink", f"127.0.0.1:{self.port}", "--auth-supernode-private-key", str(key),
            "--root-certificates", str(self.folder / f"{authority}-ca.crt"), "--node-config", f"partition-id={number}",
        ]  # fmt: skip
        if app is None:
            self.spawn(name, "flower-supernode", "--port", str(free_port()), "--max-retries", "3", *options)
        else:
            self.spawn(name, "fedceo", "flower", "supernode", str(app), *options)
        return name

    def revive(self, number: int, key: Path, app: Path | None = None) -> None:
        """Start a killed SuperNode until it is let in, as a supervisor does: for two missed heartbeats it is not."""
        name, starts = f"node-{number}", self.log(f"node-{number}").count("SuperNode ID")

        def is_in() -> bool:
            if self.processes.get(name) is None or self.processes[name].poll() is not None:
                self.node(number, key, app)
            return self.log(name).count("SuperNode ID") > starts

        self.wait(is_in, f"{name} to be let in again", "superlink")

    def register(self, key: Path) -> None:
        self.flwr("supernode", "register", f"{key}.pub", "here")

    def flwr(self, *options: str) -> str:
        """A command of the user's; returns what it said."""
        done = subprocess.run([BIN / "flwr", *options], env=self._env(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait(self, reached: Callable[[], Any], what: str, *watched: str, seconds: float = 400) -> None:
        """Until something is so, while the watched processes live."""
        end = time.monotonic() + seconds
        while not reached():
            for name in watched:
                assert self.processes[name].poll() is None, f"{name} ended: {self.log(name)[-3000:]}"
            assert time.monotonic() < end, f"waited in vain for {what}: {self.log('superlink')[-3000:]}"
            time.sleep(0.2)

    def has_ended(self, name: str) -> bool:
        return self.processes[name].poll() is not None

    def kill(self, name: str) -> None:
        """As a power cut: the process and all that it started."""
        process = self.processes.pop(name)
        for pid in [process.pid, *descendants(process.pid)]:
            end(pid)
        process.wait()

    def kill_app(self) -> None:
        """The server's app alone; the SuperLink lives on."""
        found = [pid for pid in descendants(self.processes["superlink"].pid) if b"flwr-serverapp" in command(pid)]
        assert found
        for pid in found:
            end(pid)

    def stop(self) -> None:
        for name in sorted(self.processes, reverse=True):  # the SuperLink last
            self.kill(name)

    def _env(self) -> dict[str, str]:
        return os.environ | {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            "OMP_NUM_THREADS": "1",
            "RAY_ADDRESS": "local",  # a cluster of its own, whoever else has one here
        }


@contextmanager
def superlink(folder: Path, simulation: bool = False) -> Iterator[Link]:
    link = Link(folder, simulation)
    try:
        link.start()
        yield link
    finally:
        link.stop()


def descendants(pid: int) -> list[int]:
    """All processes below one, as far as they still live."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(stat[1]), []).append(int(entry.name))
    found = list(parents.get(pid, []))
    for child in found:
        found += parents.get(child, [])
    return found


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
