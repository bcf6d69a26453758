"""Relative paths that a program gives Orbax for a checkpoint, where the source shows them.

Orbax writes arrays through TensorStore, and its format of many arrays in few files (OCDBT) has no working directory: it
raises for a path that is not absolute. What writes no OCDBT takes any path, as do functions that only list folders or
read metadata.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from mmmodernize.sites.site import ModernizeContext
from mmmodernize.text.path_beginnings import path_beginning
from mmmodernize.types.value_classes import ValueClasses
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.value import By, CallArguments, Value

_FLAX, _RESTORE = "flax.training.checkpoints.", "flax.training.checkpoints.restore_checkpoint"
_MANAGERS = frozenset(("orbax.checkpoint.CheckpointManager", "orbax.checkpoint.checkpoint_manager.CheckpointManager"))
_V1 = ("orbax.checkpoint.v1.", "orbax.checkpoint.experimental.v1.")
_V1_READS, _V1_WRITES = ("load", "load_pytree", "load_checkpointables"), ("save", "save_pytree", "save_checkpointables")
_V1_NAMES = (*_V1_READS, *_V1_WRITES, *(f"{name}_async" for name in _V1_WRITES))
# What takes a directory first, with the name of that parameter.
_FUNCTIONS = {
    **{f"{_FLAX}{name}": "ckpt_dir" for name in ("save_checkpoint", "save_checkpoint_multiprocess")},
    _RESTORE: "ckpt_dir",
    **dict.fromkeys(_MANAGERS, "directory"),
    **{f"{home}{name}": "path" for home in _V1 for name in _V1_NAMES},
    **{f"{home}training.Checkpointer": "directory" for home in _V1},
    "orbax.checkpoint.checkpoint_utils.checkpoints_iterator": "checkpoint_dir",
}
_METHODS = frozenset(("restore", "save"))
# Past all places: what is given by its name alone.
_ALONE = 1 << 30
_ITSELF = frozenset(
    f"{kind}{part}" for kind in ("PyTree", "Standard") for part in ("Checkpointer", "CheckpointHandler")
)
_BY_HANDLER = frozenset(("Checkpointer", "AsyncCheckpointer"))
# Each writes files of its own.
_OTHERS = frozenset(f"{kind}CheckpointHandler" for kind in ("Array", "JaxRandomKey", "Json", "NumpyRandomKey", "Proto"))
_ARRAY_ITEMS = frozenset(f"{kind}{verb}" for kind in ("PyTree", "Standard") for verb in ("Restore", "Save"))
_OTHER_ITEMS = frozenset(
    f"{name.removesuffix('CheckpointHandler')}{verb}" for name in _OTHERS for verb in ("Restore", "Save")
)
_ARGS = ("orbax.checkpoint.args", "orbax.checkpoint.checkpoint_args")
# Without it, Flax writes a file by itself, wherever that is.
_FLAG = "flax_use_orbax_checkpointing"


@dataclass(frozen=True)
class RelativePath:
    """A relative path of a checkpoint: the expression, and what there is to say about it.

    `is_certain` is false of a path, or of a call, for which the program may also run as it is.
    """

    node: ast.expr
    told: str
    is_certain: bool


def relative_path(context: ModernizeContext, module: ModuleUses, call: ast.Call) -> RelativePath | None:
    """The path of a checkpoint in a call that Orbax refuses, None if the source does not show it to be relative."""
    taken = _parameter(context, module, call)
    if taken is None:
        return None
    parameter, condition = taken
    by_place = call.args[:1] if parameter != _OF_MANAGER else []
    given = [*by_place, *(each.value for each in call.keywords if each.arg == parameter.strip("="))]
    begin = path_beginning(context.flow, Value(module, given[0])) if given else None
    if begin is None or not begin.is_relative:
        return None
    change = "expanduser" if begin.text.startswith("~") else "absolute" if begin.is_path else "abspath"
    change = f"`.{change}()`" if begin.is_path else f"`os.path.{change}(...)`"
    advice = f"make that default absolute by {change}" if begin.is_default else f"pass {change} of it"
    unless = f" unless {begin.unless}" if begin.unless else ""
    told = f"{unless}; {f'{condition}, ' if condition else ''}{advice}"
    return RelativePath(given[0], told, not condition and not begin.unless)


# By keyword alone: `manager.restore(step, directory=...)`.
_OF_MANAGER = "directory="


def _parameter(context: ModernizeContext, module: ModuleUses, call: ast.Call) -> tuple[str, str] | None:
    """The name of the parameter for the directory of a checkpoint, and when it must be absolute; empty for always."""
    name = module.full_name(call.func)
    if name is None:
        return _of_method(context, module, call)
    parameter = _FUNCTIONS.get(name)
    if parameter is None:
        return None
    condition: str | None = ""
    if name == _RESTORE:
        condition = "if Orbax wrote the checkpoint"
    elif name.startswith(_FLAX):
        condition = _when_flax_uses_orbax(context, module, call)
    elif name in _MANAGERS:
        condition = "" if _manages_arrays(context, module, call) else None
    elif name.startswith(_V1):
        is_of_others = name.rpartition(".")[2] in _V1_READS and "SAFETENSORS" in module.words
        condition = "if Orbax wrote the checkpoint" if is_of_others else _when_all_is_ocdbt(module)
    return None if condition is None else (parameter, condition)


def _when_all_is_ocdbt(module: ModuleUses) -> str:
    """When a call takes part in OCDBT that does not say itself whether it does."""
    return "if it is in OCDBT" if "use_ocdbt" in module.words else ""


def _when_flax_uses_orbax(context: ModernizeContext, module: ModuleUses, call: ast.Call) -> str | None:
    """When a function of Flax writes by Orbax in OCDBT, None if it does not."""
    given = next((each.value for each in call.keywords if each.arg == "orbax_checkpointer"), None)
    if given is None or (isinstance(given, ast.Constant) and given.value is None):
        return "" if _is_flag_on(module) else None
    writes = _writes_ocdbt(context, Value(module, given))
    return {True: "", None: "if that checkpointer writes OCDBT", False: None}[writes]


def _is_flag_on(module: ModuleUses) -> bool:
    """Whether a module leaves the flag of Flax for Orbax as it is, or only sets it to what it is by default."""
    if _FLAG not in module.facts.source.text:
        return True
    calls = [module.parents.get(each) for each in module.strings if each.value == _FLAG]
    stores = [each for each in module.attributes.get(_FLAG, ()) if isinstance(each.ctx, ast.Store)]
    return not stores and all(_sets_true(call) for call in calls)


def _sets_true(call: ast.AST | None) -> bool:
    """Whether a call is that of `flax.config.update(flag, True)`."""
    given = call.args[1:] if isinstance(call, ast.Call) else []
    return len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value is True


def _of_method(context: ModernizeContext, module: ModuleUses, call: ast.Call) -> tuple[str, str] | None:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _METHODS:
        return None
    owner = call.func.value
    if context.analysis(ValueClasses).of(module, owner) in _MANAGERS:
        return _OF_MANAGER, _when_all_is_ocdbt(module)
    # Handlers take no strings, and so no `os.path.abspath(...)`.
    if (_class_of_orbax(context, Value(module, owner)) or "").endswith("Handler"):
        return None
    writes = _writes_ocdbt(context, Value(module, owner))
    if writes is False or (writes is None and not _has_array_items(module, call)):
        return None
    # What writes OCDBT reads other files as well.
    return "directory", _when_all_is_ocdbt(module) if call.func.attr == "restore" else ""


def _class_of_orbax(context: ModernizeContext, value: Value) -> str | None:
    """The own name of the class of an object of Orbax, but for those of its second interface."""
    home, _, own = (context.analysis(ValueClasses).of_value(value) or "").rpartition(".")
    return own if f"{home}.".startswith("orbax.checkpoint.") and not f"{home}.".startswith(_V1) else None


def _writes_ocdbt(context: ModernizeContext, value: Value) -> bool | None:
    """Whether a checkpointer or its handler writes arrays in OCDBT, None if that is not seen."""
    own, made = _class_of_orbax(context, value), context.flow.must(value, _call_of_class)
    if own in _ITSELF:
        given = made.at(_ALONE, "use_ocdbt") if made is not None else None
        known = given.expression if given is not None else None
        return True if given is None else known.value is True if isinstance(known, ast.Constant) else None
    if own in _OTHERS:
        return False
    if own in _BY_HANDLER and made is not None:
        handler = made.at(0, "handler")
        return _writes_ocdbt(context, handler) if handler is not None else None
    return None


def _call_of_class(value: Value) -> CallArguments | None:
    is_made = isinstance(value.head, str) and [step.kind for step in value.path] == [By.CALL]
    return value.path[0].what if is_made else None


def _has_array_items(module: ModuleUses, call: ast.Call) -> bool:
    """Whether a call names items with arrays, as in `args=Composite(state=StandardSave(state))`."""
    return any(own in _ARRAY_ITEMS for argument in (*call.args[1:], *call.keywords) for own in _items(module, argument))


def _items(module: ModuleUses, node: ast.AST) -> Iterator[str]:
    """The own names of the classes of `orbax.checkpoint.args` that are called in an expression."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            home, _, own = (module.full_name(each.func) or "").rpartition(".")
            if home in _ARGS:
                yield own


def _manages_arrays(context: ModernizeContext, module: ModuleUses, call: ast.Call) -> bool:
    """Whether a `CheckpointManager` is for arrays; it is if nothing in the module says that it is for other items."""
    named = {"checkpointers", "item_handlers"}
    given = [*call.args[1:2], *(each.value for each in call.keywords if each.arg in named)]
    handlers = [
        _writes_ocdbt(context, Value(module, each))
        for argument in given
        for each in ast.walk(argument)
        if isinstance(each, ast.Call | ast.Name) and _class_of_orbax(context, Value(module, each)) is not None
    ]
    if handlers:
        return any(writes is not False for writes in handlers)
    items = {name.rpartition(".")[2] for name in module.names_below(_ARGS)}
    return not items & _OTHER_ITEMS or bool(items & _ARRAY_ITEMS)
