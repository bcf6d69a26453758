"""Digests that name a program by its content: two programs with one digest compute the same, in any process.

Every value is of a type on a short list, and spelled out in full; anything else has no digest.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Hashable
from typing import Any

import numpy as np
from jax.extend.core import Primitive

from mmruntime import _compat
from mmruntime._jaxpr.canonical_forms import Identity, Shared

# Whose types, members of enumerations and named tuples are known by their names: what they mean goes with a version.
_PACKAGES = frozenset({"builtins", "numpy", "ml_dtypes", "jax", "jaxlib", "mmruntime"})


class _UnnamedError(Exception):
    """A value that has no content which another process could compare."""


def content_digest(form: Hashable, platform: str) -> str | None:
    """The digest of a canonical form, of `mmruntime._jaxpr.canonical_forms` for example.

    Args:
        form: Numbers, strings, types, members of enumerations, tuples of these, and the primitives, abstract values,
            contexts and specs of JAX.
        platform: Where it is to run: a primitive must have lowering rules of JAX's own, or of ours, for it.

    Returns:
        None if something in it is of any other type, an effect or a function for example.
    """
    return ContentDigests().of(form, platform)


class ContentDigests:
    """The digests of forms that share parts; each part is spelled out once.

    They are of one moment: what a lowering rule reaches is not looked at again.
    """

    def __init__(self) -> None:
        self._writers: dict[str, _ContentWriter] = {}

    def of(self, form: Hashable, platform: str) -> str | None:
        """See `content_digest`."""
        if platform not in self._writers:
            self._writers[platform] = _ContentWriter(platform)
        try:
            return hashlib.sha256(self._writers[platform].text(form)).hexdigest()
        except _UnnamedError:
            return None


class _ContentWriter:
    """Spells values out. What it has seen it keeps, so that no two of them have one identity."""

    def __init__(self, platform: str) -> None:
        self._platform = platform
        self._seen: dict[int, tuple[Any, bytes]] = {}

    def text(self, form: Any) -> bytes:
        """The bytes of a value, which no other value has."""
        seen = self._seen
        pieces: list[bytes] = []

        def write(value: Any) -> None:
            pieces.append(b"%c%d:" % (b"t" if type(value) is tuple else b"l", len(value)))
            for item in value:
                kind = type(item)
                if kind is tuple or kind is list:
                    write(item)
                elif kind is int:
                    # Positions of variables, most of all that is written.
                    pieces.append(b"%d;" % item)
                else:
                    pieces.append(leaf(item))

        def leaf(value: Any) -> bytes:
            known = seen.get(id(value))
            if known is None:
                known = seen[id(value)] = (value, self._leaf(value))
            return known[1]

        if type(form) is not tuple and type(form) is not list:
            return leaf(form)
        write(form)
        return b"".join(pieces)

    def _leaf(self, value: Any) -> bytes:
        kind = type(value)
        if kind is Shared:
            return _tagged("part", hashlib.sha256(self.text(value.value)).digest())
        if kind is Identity:
            return self._array(value.value)
        if kind is str:
            return _tagged("str", value.encode("utf-8", "surrogatepass"))
        if kind is bytes:
            return _tagged("bytes", value)
        if kind is int:
            return b"%d;" % value
        if value is None or kind is bool:
            return _tagged(kind.__name__, str(value).encode())
        if kind is float:
            return _tagged("float", struct.pack("<d", value))
        if kind is complex:
            return _tagged("complex", struct.pack("<dd", value.real, value.imag))
        if isinstance(value, type):
            return _tagged("type", _known(value).encode())
        if isinstance(value, enum.Enum):
            return _tagged("member", f"{_known(kind)} {value.name}".encode())
        if isinstance(value, np.dtype):
            if value.hasobject or value.fields is not None or value.subdtype is not None:
                raise _UnnamedError
            return _tagged("dtype", f"{value.str} {value.name}".encode())
        if isinstance(value, np.generic):
            return _tagged("number", self._leaf(value.dtype) + value.tobytes())
        if kind is frozenset or kind is set:
            # Their order is another in every process.
            return _tagged(kind.__name__, b"".join(sorted(map(self.text, value))))
        if kind is dict:
            return _tagged("dict", b"".join(sorted(self.text(item) for item in value.items())))
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            known = _compat.content(value)
            return _tagged(_known(kind), self.text(tuple(value) if known is None else known))
        if isinstance(value, Primitive):
            return _tagged("primitive", self.text(_required(_compat.primitive_content(value, self._platform))))
        return _tagged(_known(kind), self.text(_required(_compat.content(value))))

    def _array(self, value: Any) -> bytes:
        """The bytes of numbers that a program is lowered with; its arguments are named by their types alone."""
        if not _compat.is_host_array(value):
            raise _UnnamedError
        numbers = hashlib.sha256(value.tobytes()).digest()
        return _tagged("array", self.text((value.dtype, value.shape)) + numbers)


def _tagged(kind: str, text: bytes) -> bytes:
    return b"%s %d:%s" % (kind.encode(), len(text), text)


def _known(kind: type) -> str:
    if kind.__module__.partition(".")[0] not in _PACKAGES or "<locals>" in kind.__qualname__:
        raise _UnnamedError
    return f"{kind.__module__}.{kind.__qualname__}"


def _required(found: Any) -> Any:
    if found is None:
        raise _UnnamedError
    return found
