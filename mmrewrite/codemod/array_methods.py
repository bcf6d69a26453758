"""What the methods of arrays of JAX are called."""

from __future__ import annotations

# fmt: off
ARRAY_METHODS = frozenset(
    (
        "add", "all", "any", "argmax", "argmin", "argsort", "astype", "at", "block_until_ready",
        "clip", "conj", "copy", "cumsum", "dot", "flatten", "get", "item", "max",
        "mean", "min", "multiply", "prod", "ravel", "repeat", "reshape", "round", "set",
        "sort", "squeeze", "std", "sum", "swapaxes", "take", "tolist", "transpose", "update",
        "var", "view",
    )
)
# fmt: on
