"""Relative paths that a program gives Orbax for a checkpoint, where the source shows them.

Orbax writes arrays through TensorStore, which has no working directory, and raises for a path that is not absolute.
"""

from __future__ import annotations

import ast

from mmrewrite.modernize.analysis.value_classes import class_of
from mmrewrite.modernize.uses import ModuleUses

# What takes a directory first, with the name of that parameter.
_FUNCTIONS = {
    "flax.training.checkpoints.save_checkpoint": "ckpt_dir",
    "flax.training.checkpoints.save_checkpoint_multiprocess": "ckpt_dir",
    "orbax.checkpoint.CheckpointManager": "directory",
    "orbax.checkpoint.checkpoint_manager.CheckpointManager": "directory",
}
# Others may have a handler that writes no arrays.
_CHECKPOINTERS = frozenset(("PyTreeCheckpointer", "StandardCheckpointer"))
_METHODS = frozenset(("restore", "save"))
# With it, Flax writes a file by itself, wherever that is.
_FLAG = "flax_use_orbax_checkpointing"
_PATHS = frozenset(("pathlib.Path", "etils.epath.Path"))
_DEEPEST = 4


def relative_path(module: ModuleUses, call: ast.Call) -> ast.expr | None:
    """The path of a checkpoint in a call that Orbax refuses, None if the source does not show it to be relative."""
    parameter = _parameter(module, call)
    if parameter is None:
        return None
    given = [*call.args[:1], *(each.value for each in call.keywords if each.arg == parameter)]
    start = _start(module, given[0]) if given else None
    # With a colon, it may be that of a bucket, or of Windows.
    return given[0] if start and not start.startswith("/") and ":" not in start else None


def _parameter(module: ModuleUses, call: ast.Call) -> str | None:
    """The name of the parameter for the directory of a checkpoint."""
    name = module.facts.names.resolve(call.func, module.scope_of(call))
    if name is not None:
        is_of_flax = name.startswith("flax.")
        return None if is_of_flax and _FLAG in module.facts.source.text else _FUNCTIONS.get(name)
    if isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS:
        home, _, own = (class_of(module, call.func.value) or "").rpartition(".")
        return "directory" if home.startswith("orbax.checkpoint") and own in _CHECKPOINTERS else None
    return None


def _start(module: ModuleUses, node: ast.expr, depth: int = 0) -> str | None:
    """The text with which a path begins for certain, None if the source does not show it."""
    if depth > _DEEPEST:
        return None
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[first, *_]) | ast.BinOp(left=first, op=ast.Add()):
            return _start(module, first, depth + 1)
        case ast.FormattedValue(value=first, conversion=-1, format_spec=None):
            return _start(module, first, depth + 1)
        case ast.Name(id=name):
            binding = module.facts.names.binding(name, module.scope_of(node))
            value = binding.value if binding is not None else None
            return _start(module, value, depth + 1) if value is not None else None
        case ast.BinOp(left=first, op=ast.Div(), right=ast.Constant(value=str(last))):
            # What is absolute takes the place of all before it.
            return last if last.startswith("/") else _start(module, first, depth + 1)
        case ast.Call(func=function, args=[first], keywords=[]):
            is_path = module.facts.names.resolve(function, module.scope_of(node)) in _PATHS
            return _start(module, first, depth + 1) if is_path else None
        case _:
            return None
