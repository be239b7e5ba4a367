"""Gathers pfl, Flower with Ray, and Opacus for a machine that has a GPU, torch 2.11 for Python 3.12 and no network.

    python benchmarks/peers/vendor.py [FOLDER]      # .gpu, about 5 minutes

FOLDER/peers.tar.xz then holds all that they import and that machine lacks, pydantic for this library among it;
FOLDER/peers is the same unpacked, to try it here. On that machine:

    mkdir -p ~/peers && tar xJf .gpu/peers.tar.xz -C ~/peers
    PYTHONPATH=src:$HOME/peers python3 benchmarks/gpu_race.py
"""

import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PEERS = ("pfl==0.6.0", "flwr[simulation]==1.41.0", "opacus==1.6.0", "platformdirs", "tomli-w")
"""The peers, and what this library needs that the other machine lacks."""
TORCH = "torch==2.11.0"
THERE = (
    "torch",
    "triton",
    "numpy",
    "scipy",
    "sympy",
    "mpmath",
    "networkx",
    "fsspec",
    "jinja2",
    "markupsafe",
    "setuptools",
)
"""Packages that the other machine has, beside NVIDIA's."""
NVIDIA = ("nvidia-", "cuda-")
NEVER_IMPORTED = ("setuptools", "uv", "uvloop", "wheel")
UNUSED = (
    "bin",
    "ray/dashboard/client",
    "ray/data",
    "ray/jars",
    "ray/llm",
    "ray/rllib",
    "ray/serve",
    "ray/train",
    "ray/tune",
)
"""Parts of Ray that a simulation of Flower never touches: two thirds of its size."""
MOST_MIB = 52
"""Size that the packed file may have, to travel with a repository of 10 MiB where 64 MiB may."""


def pip(*arguments: str) -> None:
    """Let pip install for that machine, whatever this one is."""
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in range(17, 35)]
    wheels = ["--only-binary=:all:", "--implementation=cp", "--python-version=3.12", "--platform=manylinux2014_x86_64"]
    quiet = ["--quiet", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *quiet, *wheels, *platforms, *arguments], check=True)


def resolve() -> list[str]:
    """All packages that the peers need and the other machine lacks, as name==version."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        pip("--dry-run", "--ignore-installed", f"--target={folder}", f"--report={report}", TORCH, *PEERS)
        found = [each["metadata"] for each in json.loads(report.read_text())["install"]]
    left_out = {*THERE, *NEVER_IMPORTED}
    names = {each["name"].lower(): f"{each['name']}=={each['version']}" for each in found}
    return [pinned for name, pinned in names.items() if name not in left_out and not name.startswith(NVIDIA)]


def gather(folder: Path) -> None:
    """The packages unpacked, less what is never used."""
    shutil.rmtree(folder, ignore_errors=True)
    pip("--no-deps", "--no-compile", f"--target={folder}", *resolve())
    for part in UNUSED:
        shutil.rmtree(folder / part)
    for tests in [*folder.glob("*/tests")]:
        shutil.rmtree(tests)


def pack(folder: Path, out: Path) -> None:
    # The dictionary spans Ray's three programs, of which each contains much of the others.
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 2**28}]
    with lzma.open(out, "wb", filters=filters) as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
        archive.add(folder, ".")


def main() -> None:
    home = Path(sys.argv[1] if len(sys.argv) > 1 else ".gpu")
    folder, out = home / "peers", home / "peers.tar.xz"
    gather(folder)
    pack(folder, out)
    size = out.stat().st_size / 2**20
    print(f"{out}: {size:.1f} MiB")
    if size > MOST_MIB:
        raise SystemExit(f"more than {MOST_MIB} MiB: leave out more in UNUSED")


if __name__ == "__main__":
    main()
