"""A cache of executables beside JAX's persistent compilation cache, keyed by programs before they are lowered.

JAX looks its executables up by what a program is lowered to, so that every start lowers them all. Here they are found
by a digest of all that lowering and XLA read: the canonical form, types, layouts, devices, donations, settings,
versions and this library's own source. A program of which something cannot be named so is lowered, as is one whose
entry is missing, damaged or unreadable.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import zlib
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from mmruntime import _compat
from mmruntime._core.whole_file import write_whole
from mmruntime._jaxpr.content import ContentDigests

log = logging.getLogger(__name__)

# The first bytes of an entry, a digest of the rest, and the length of its first part.
_HEAD = b"mmruntime program 1\n"
_PREFIXES = ("XLA_", "TF_", "LIBTPU_", "TPU_", "CUDA_", "NVIDIA_", "NCCL_")


class KeptPrograms:
    """The files of programs in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._around: dict[tuple[Any, ...], str | None] = {}
        self._contents = ContentDigests()

    def path_of(self, program: Hashable, borders: _compat.Borders) -> Path | None:
        """The file of a program; None if it cannot be named.

        Args:
            program: All that is lowered but for `borders`.
            borders: The shardings of its arguments and results, all on the same devices.
        """
        ins, outs = borders
        if not (ins or outs):
            return None
        mesh: Any = (*ins, *outs)[0].mesh
        devices = tuple(mesh.devices.flat)
        client = devices[0].client
        if any(device.process_index != client.process_index() for device in devices):
            return None
        if devices not in self._around:
            found = _surroundings(devices)
            self._around[devices] = None if found is None else self._contents.of(found, client.platform)
        around = self._around[devices]
        if around is None:
            return None
        name = self._contents.of((around, program, _shardings(borders)), client.platform)
        return None if name is None else self._folder / f"{name}.program"


def read_program(path: Path, borders: _compat.Borders) -> _compat.CompiledProgram | None:
    """The program in a file; None if there is none that can be loaded."""
    if not path.is_file():
        return None
    try:
        text = path.read_bytes()
        head, rest = text[: len(_HEAD) + 32], text[len(_HEAD) + 32 :]
        if head != _HEAD + hashlib.sha256(rest).digest():
            raise ValueError("it is damaged")
        size = int.from_bytes(rest[:8], "big")
        about, serialized = rest[8 : 8 + size], zlib.decompress(rest[8 + size :])
    except (OSError, ValueError, zlib.error) as error:
        log.debug("%s is not used: %s", path, error)
        return None
    return _compat.unpack(about, serialized, borders)


def write_program(path: Path, program: _compat.CompiledProgram, borders: _compat.Borders) -> None:
    """Keep a program."""
    packed = _compat.pack(program, borders)
    if packed is None:
        return
    about, serialized = packed
    # The fastest level: the code of a program is a seventh of its size then, and a higher level saves little.
    rest = len(about).to_bytes(8, "big") + about + zlib.compress(serialized, 1)
    try:
        write_whole(path, _HEAD + hashlib.sha256(rest).digest() + rest)
    except OSError as error:
        log.debug("A program is not kept in %s: %s", path.parent, error)


def _shardings(borders: _compat.Borders) -> Hashable:
    """The shardings of a program, but for their devices, which are the same for all."""
    return tuple(
        (sharding.mesh.axis_names, sharding.mesh.axis_sizes, sharding.mesh.axis_types, sharding.spec, kind)
        for part in borders
        for sharding in part
        for kind in [(sharding.memory_kind, type(sharding))]
    )


def _surroundings(devices: tuple[Any, ...]) -> Hashable:
    """All beside a program that decides what it is compiled to; None if that is not known."""
    variables = tuple((name, value) for name, value in sorted(os.environ.items()) if name.startswith(_PREFIXES))
    try:
        known, settings = _compat.device_content(devices), _compat.compilation_settings()
        return _compat.versions(), _own_source(), _processor(), known, settings, variables
    except (ImportError, AttributeError, TypeError, OSError) as error:
        # Another JAX, or a library that lies in an archive.
        log.debug("Programs are not kept: %s", error)
        return None


@functools.cache
def _own_source() -> str:
    """A digest of this library, whose version does not change while it is worked on."""
    found = hashlib.sha256()
    folder = Path(__file__).parents[1]
    files = sorted(folder.rglob("*.py"))
    if not files:
        raise OSError(f"{folder} is no folder")
    for file in files:
        found.update(f"{file.relative_to(folder)} ".encode() + hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()


@functools.cache
def _processor() -> str:
    """What XLA compiles for on CPUs: the instructions that this machine has, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    said = {line.partition("\t")[0].strip(": "): line for line in lines}
    return "\n".join(
        said.get(name, "") for name in ("vendor_id", "cpu family", "model", "model name", "flags", "Features")
    )
