"""The federation of docs/federation.md, command by command as the page says it, on loopback."""

import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.superlink import Link, free_port

PAGE = Path(__file__).parents[2] / "docs" / "federation.md"


def section(title: str) -> str:
    """The text below one heading of the page."""
    return PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def commands(text: str) -> list[str]:
    """The commands in indented lines, each as one line."""
    found = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    return found.replace("\\\n", "").splitlines()


@dataclass
class DocumentedFederation(Link):
    """Processes that were started by the page's commands; data holder i has a folder of its own, holder-i."""

    def start(self) -> None:
        home = self.folder / "flwr"
        home.mkdir()
        superlink = section("3. The SuperLink")
        for command in commands(section("2. Keys and certificates")):
            if not command.startswith("ssh-keygen"):
                self.shell(command, self.folder)
        (home / "config.toml").write_text(self.here(superlink.partition("```toml\n")[2].partition("```")[0]))
        self.run_in_background("superlink", commands(superlink)[0], self.folder)
        self.wait(lambda: self.log("superlink").count("running on") == 2, "the SuperLink to listen", "superlink")

    def write_app(self, experiment: str) -> Path:
        (self.folder / "mine.toml").write_text(experiment)
        self.shell(commands(section("1. Write the app and try it here"))[0], self.folder)
        return self.folder / "hospitals"

    def join(self, number: int, careless: bool = False) -> Path:
        """A data holder makes its key, the operator registers it, and the node starts; returns the holder's folder.

        Args:
            careless: the node is Flower's own program, which runs any app.
        """
        holder = self.folder / f"holder-{number}"
        holder.mkdir()
        shutil.copy(self.folder / "ca.crt", holder)
        shutil.copytree(self.folder / "hospitals", holder / "hospitals")
        self.shell(commands(section("2. Keys and certificates"))[-1], holder)
        shutil.copy(holder / "node.pub", self.folder / f"node-{number}.pub")
        self.shell(commands(section("3. The SuperLink"))[1].replace("node-0", f"node-{number}"), self.folder)
        command = commands(section("4. The SuperNodes"))[0].replace("partition-id=0", f"partition-id={number}")
        if careless:
            command = command.replace("fedceo flower supernode hospitals", f"flower-supernode --port {free_port()}")
        self.run_in_background(f"node-{number}", command, holder)
        return holder

    def here(self, text: str) -> str:
        """A text of the page with this machine's name, ports and folders."""
        names = {
            "link.example.org": "localhost",
            "8443": str(self.port),
            "8444": str(self.control),
            "/etc/federation": str(self.folder),
            "/var/lib/federation": str(self.folder),
        }
        return re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], text)

    def shell(self, command: str, cwd: Path) -> str:
        done = subprocess.run(
            ["sh", "-ec", self.here(command)], cwd=cwd, env=self._env(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def run_in_background(self, name: str, command: str, cwd: Path) -> None:
        program, *options = shlex.split(self.here(command))
        self.spawn(name, program, *options, cwd=cwd)
