"""Digests: names of canonical forms that are the same in the next process, for what is kept on disk."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Hashable
from typing import Any

import numpy as np
from jax.extend.core import Primitive

from mmruntime._jaxpr.equal import Shared


def digest(form: Hashable) -> str | None:
    """A digest of a canonical form, of `mmruntime._jaxpr.equal` for example.

    Returns:
        None if something in it has no value that another process could know: a function, an array, an opaque object.
    """
    known: dict[tuple[type, Any], bytes] = {}
    found = hashlib.sha256()

    def add(value: Any) -> bool:
        if type(value) is tuple or type(value) is list:
            found.update(b"(%d" % len(value))
            return all(map(add, value))
        key = (type(value), value)
        text = known.get(key)
        if text is None:
            said = _said_of_part(value) if type(value) is Shared else _said(value)
            if said is None:
                return False
            text = known[key] = b"%d:%s" % (len(said), said)
        found.update(text)
        return True

    return found.hexdigest() if add(form) else None


def _said_of_part(shared: Shared) -> bytes | None:
    named = digest(shared.value)
    return None if named is None else b"part " + named.encode()


def _said(value: Any) -> bytes | None:
    """What a value is, in bytes that another value of its form does not have; None if that cannot be said."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return f"{kind.__name__} {value}".encode()
    if isinstance(value, bytes):
        return b"bytes " + value
    if kind is frozenset:
        # Their order is another in every process.
        items = sorted(said for said in map(_said, value) if said is not None)
        return b"set %r" % items if len(items) == len(value) else None
    of_jax = kind.__module__.partition(".")[0] == "jax"
    if of_jax and isinstance(value, Primitive):
        return f"primitive {value.name}".encode()
    # Types, and the abstract values, contexts, specs and named tuples of JAX, print all that they are.
    if not isinstance(value, np.dtype | enum.Enum | type) and (not of_jax or callable(value)):
        return None
    text = repr(value)
    # An address, or a function inside.
    if " at 0x" in text or "<function" in text:
        return None
    sharding = getattr(value, "sharding", "") if of_jax else ""
    return f"{kind.__module__}.{kind.__qualname__} {text} {sharding}".encode()
