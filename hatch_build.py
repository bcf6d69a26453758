"""What is made when a wheel is built: its addresses, and the markers of `mmrewrite modernize`.

The metadata says where the source is: at the address that it was built from.

That is `REPOSITORY_URL`, or else the address of git's `origin` if a browser can open it. A wheel that is built from a
source distribution has that of the latter. Without any, the metadata has no URLs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = {
    "Source": "",
    "Documentation": "/tree/HEAD/docs",
    "Changelog": "/blob/HEAD/CHANGELOG.md",
    "Issues": "/issues",
}


def web_address(address: str) -> str | None:
    """`https://host/owner/name` for an address of git's, or None for one that no browser opens."""
    match = re.fullmatch(
        r"(?:https?://(?:[^@/]*@)?|ssh://git@|git@)([\w.-]+)[:/]([\w./~-]+?)(?:\.git)?/?", address.strip()
    )
    return f"https://{match[1]}/{match[2]}" if match else None


def repository(root: Path) -> str | None:
    """The address of the repository at or above `root`."""
    if "REPOSITORY_URL" in os.environ:
        return os.environ["REPOSITORY_URL"].rstrip("/") or None
    try:
        command = ["git", "-C", str(root), "remote", "get-url", "origin"]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return web_address(found)


def urls(root: Path) -> dict[str, str]:
    """The names and addresses for the metadata."""
    built = root / "PKG-INFO"
    if built.is_file():
        lines = HeaderParser().parsestr(built.read_text(encoding="utf-8")).get_all("Project-URL") or []
        return dict(line.split(", ", 1) for line in lines)
    address = repository(root)
    return {name: address + page for name, page in PAGES.items()} if address else {}


class Urls(MetadataHookInterface):
    """Hatchling's hook: `urls` is declared dynamic in pyproject.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add what is dynamic."""
        metadata["urls"] = urls(Path(self.root))


class Markers(BuildHookInterface[Any]):
    """Hatchling's hook for wheels. What is installed in place makes the markers at first use."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file."""
        if version == "editable":
            return
        root = Path(self.root)
        code = "import sys; from mmmodernize.names.markers import built; sys.stdout.buffer.write(built())"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(root), str(root / "codemods")))}
        done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True)
        # It goes with this hook, which lives until the wheel is written.
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "markers.bin"
        file.write_bytes(done.stdout)
        build_data["force_include"][str(file)] = "mmmodernize/names/markers.bin"
