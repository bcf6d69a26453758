"""Write docs/pictures: the review of examples/gpt as a browser shows it. Needs Debian's chromium, and playwright."""

import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
WIDTH = 1000
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def main() -> None:
    """Take the pictures."""
    PICTURES.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "mmrewrite", "diff", "examples/gpt", "--format", "html", "--no-cache", "-q"]
    text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        path = Path(folder) / "review.html"
        path.write_bytes(text)
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, scheme, first, last in (
            ("review.png", "light", "body", ".hunk >> nth=1"),
            ("plan-dark.png", "dark", "#plan-0", "dl >> nth=0"),
        ):
            page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme=scheme)
            page.goto(path.as_uri())
            _take(page, first, last, PICTURES / name)
        browser.close()


def _take(page: Page, first: str, last: str, path: Path) -> None:
    """From the top of one element to the bottom of another."""
    top, bottom = page.locator(first).bounding_box(), page.locator(last).bounding_box()
    assert top is not None
    assert bottom is not None
    start = max(0, top["y"] - 16)
    height = bottom["y"] + bottom["height"] + 16 - start
    data = page.screenshot(full_page=True, clip={"x": 0, "y": start, "width": WIDTH, "height": height})
    path.write_bytes(_smaller(data))


def _smaller(data: bytes) -> bytes:
    """The same PNG in fewer bytes: text compresses best without the filters that browsers use."""
    chunks, at = [], len(SIGNATURE)
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    head = chunks[0][1]
    pixels = zlib.decompress(b"".join(content for kind, content in chunks if kind == b"IDAT"))
    rows = _rows(pixels, *struct.unpack(">II", head[:8]), {2: 3, 6: 4}[head[9]])
    packed = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    return SIGNATURE + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in ((b"IHDR", head), (b"IDAT", packed), (b"IEND", b""))
    )


def _rows(pixels: bytes, width: int, height: int, depth: int) -> Iterator[bytes]:
    """The rows of a picture with a byte for each channel, without their filters (https://www.w3.org/TR/png-3/#9Filters)."""
    size = width * depth
    above = bytearray(size)
    for start in range(0, height * (size + 1), size + 1):
        kind, row = pixels[start], bytearray(pixels[start + 1 : start + 1 + size])
        for x in range(size):
            left, corner = (row[x - depth], above[x - depth]) if x >= depth else (0, 0)
            guess = left + above[x] - corner
            nearest = min((left, above[x], corner), key=lambda value: abs(guess - value))
            row[x] = (row[x] + (0, left, above[x], (left + above[x]) // 2, nearest)[kind]) & 255
        above = row
        yield bytes(row)


if __name__ == "__main__":
    main()
