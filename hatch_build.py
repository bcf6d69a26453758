"""Says in the metadata of a wheel where its source is: at the address that it was built from.

That is `REPOSITORY_URL`, or else the address of git's `origin` if a browser can open it. A wheel that is built from a
source distribution has that of the latter. Without any, the metadata has no URLs.
"""

from __future__ import annotations

import os
import re
import subprocess
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

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
