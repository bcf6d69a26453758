"""With which text a path begins, where the source shows it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.functions import with_defaults
from mmrewrite.values.flow import ValueFlow
from mmrewrite.values.value import Access, By, CallArguments, Display, Path, Unknown, Value

_PATHS = frozenset(("pathlib.Path", "pathlib.PosixPath", "etils.epath.Path"))
_JOINS = frozenset(("os.path.join", "posixpath.join"))
# What gives a relative path for a relative one.
_UNCHANGED = frozenset(("builtins.str", "os.fspath", "os.path.normpath", "posixpath.normpath"))
_PARSES = frozenset(("parse_args", "parse_known_args"))
_STRING_FLAG = "absl.flags.DEFINE_string"
_FLAGS = "absl.flags.FLAGS."
_NAMESPACE = "argparse.Namespace"
_DEEPEST = 6
# More cases than these, in which a path is another one, are not read.
_MOST_NAMED = 3
_CONTAINERS = (ast.List, ast.Dict, ast.Tuple, ast.Set, ast.Call, ast.Attribute, ast.Assign)
_NO_PATHS = (
    *(ast.Constant, ast.List, ast.Dict, ast.Tuple, ast.Set, Display),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda),
)
# An expression of these kinds begins as its first part does.
_OF_PARTS = (ast.JoinedStr, ast.BinOp, ast.FormattedValue)


@dataclass(frozen=True)
class PathBeginning:
    """The text with which a path begins.

    Attributes:
        text: That text, never empty.
        is_path: Whether it is an object of `pathlib` or `epath`, and no string.
        unless: When it begins with another text, as words behind "unless"; empty if it does for certain.
        is_default: Whether it is what a flag or a parameter has by default. `is_path` is about that then.
    """

    text: str
    is_path: bool = False
    unless: str = ""
    is_default: bool = False

    @property
    def is_relative(self) -> bool:
        """Whether the path is relative, unless it begins with another text."""
        # With a colon, it may be that of a bucket, or of Windows.
        return not self.text.startswith("/") and ":" not in self.text


def path_beginning(flow: ValueFlow, value: Value, depth: int = 0) -> PathBeginning | None:
    """The text with which a path begins, None if the source shows no relative one, nor that it is absolute.

    Of several values that it may be, a relative one is told, with the others as what it is not then.
    """
    if depth > _DEEPEST:
        return None
    found: list[PathBeginning] = []
    others: list[str] = []
    for begin, each in flow.walk(value, lambda value: _of_value(flow, value, depth)):
        if isinstance(each, Unknown):
            unseen = "other code gives another" if each.is_open else f"it is another one ({each.reason})"
            others.append(_told(flow, each.value) or unseen)
        elif begin is None:
            # `None` and numbers are no paths, and an empty container has none.
            if not isinstance(each.head, _NO_PATHS):
                others.append(_told(flow, each))
        elif not begin.text:
            others.append("")
        elif begin.is_relative:
            found.append(begin)
        else:
            others.append(f"it begins with `{begin.text}`")
    if not found:
        known = [each for each in others if each.startswith("it begins")]
        return PathBeginning("/") if known and len(known) == len(others) else None
    if "" in others:
        return None
    unless = [found[0].unless, *others] if len(found) == 1 else [*(each.unless for each in found), *others]
    known = [*dict.fromkeys(filter(None, unless))]
    if len(known) > _MOST_NAMED:
        known = [*known[: _MOST_NAMED - 1], "it is one of many other values"]
    return replace(found[0], unless=" or ".join(known))


def _told(flow: ValueFlow, value: Value | None) -> str:
    """In which case the value is not an unknown path, in words for a message; empty if there is nothing to add."""
    is_whole = value is not None and all(step.kind in (By.ITEM, By.ELEMENT) for step in value.path)
    if value is not None and isinstance(value.head, ast.arg) and is_whole:
        return f"a caller passes another `{value.head.arg}`"
    if value is not None and isinstance(value.head, _CONTAINERS):
        return "another one is put there"
    if value is not None and value.own_class is not None:
        return f"it is an object of `{value.own_class.name}`"
    return ""


def _of_value(flow: ValueFlow, value: Value, depth: int) -> PathBeginning | None:
    """What a value begins with, None where the values behind it say so; an empty text if that is not seen."""
    head, path = value.head, value.path
    if path and isinstance(head, ast.Constant) and (head.value is None or not _is_of_text(path[0])):
        return None
    if path and isinstance(head, ast.Constant | ast.JoinedStr | ast.BinOp) and not flow.behind(value):
        return _of_method(flow, value, depth) or PathBeginning("")
    if isinstance(head, ast.Constant) and isinstance(head.value, str):
        begin = PathBeginning(head.value)
        default = _parameter_of_default(value.module, head)
        return _overridable(begin, f"a caller passes another `{default.arg}`") if default is not None else begin
    if isinstance(head, _OF_PARTS) and not path:
        # An operator may be a method of the project.
        return _of_parts(flow, value, depth) or (None if flow.behind(value) else PathBeginning(""))
    if isinstance(head, ast.arg) and path and path[0].kind is By.ATTRIBUTE and _holds_options(flow, value.module, head):
        return _of_option(flow, value.module, path[0].what, path[1:], depth) or PathBeginning("")
    if not isinstance(head, str) or flow.behind(value):
        return None
    return _of_library(flow, value, depth) or PathBeginning("")


def _is_of_text(step: Access) -> bool:
    """Whether a text has what is taken of it; of several values that one may be, another is meant where it has not."""
    return hasattr(str, step.what) if step.kind is By.ATTRIBUTE else step.kind is By.REST


def _of_parts(flow: ValueFlow, value: Value, depth: int) -> PathBeginning | None:
    def part(node: ast.expr) -> PathBeginning | None:
        return path_beginning(flow, Value(value.module, node, (), value.frame), depth + 1)

    match value.head:
        case ast.JoinedStr(values=[first, *_]) | ast.BinOp(left=first, op=ast.Add()):
            return part(first)
        case ast.FormattedValue(value=first, conversion=-1, format_spec=None):
            return part(first)
        case ast.FormattedValue(format_spec=ast.JoinedStr(values=[ast.Constant(value=str(shape))])):
            return PathBeginning("0") if shape.endswith("d") else None
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return PathBeginning(text.partition("%")[0])
        case ast.BinOp(left=first, op=ast.Div(), right=last):
            parts = [Value(value.module, each, (), value.frame) for each in (first, last)]
            return _joined(flow, parts, depth)
        case _:
            return None


def _of_method(flow: ValueFlow, value: Value, depth: int) -> PathBeginning | None:
    """How a path begins that is made of a text or of another path."""
    match value.path:
        case [Access(By.ATTRIBUTE, "format"), Access(By.CALL)] if isinstance(value.head, ast.Constant):
            return PathBeginning(str(value.head.value).partition("{")[0])
        case [*before, Access(By.ATTRIBUTE, "joinpath"), Access(By.CALL, call)] if not call.keywords:
            first = value._replace(path=tuple(before))
            return _joined(flow, [first, *_positional(call)], depth)
        case [*before, Access(By.ATTRIBUTE, "parent")]:
            begin = path_beginning(flow, value._replace(path=tuple(before)), depth + 1)
            # The folder of "ckpt" is "."; that of a default that is one word would be another than the default.
            return begin if begin is not None and begin.is_path and not begin.is_default else None
        case _:
            return None


def _positional(call: CallArguments) -> list[Value | None]:
    return [None if each.is_starred else each.value for each in call.positional]


def _joined(flow: ValueFlow, parts: Sequence[Value | None], depth: int) -> PathBeginning | None:
    """The beginning of a path that is joined from parts. An absolute part replaces all before it."""
    unknown: list[str] = []
    values = [part for part in parts if part is not None]
    if not parts or len(values) < len(parts):
        return None
    for part in reversed(values[1:]):
        begin = path_beginning(flow, part, depth + 1)
        if begin is None or not begin.text:
            shown = ast.unparse(part.head) if isinstance(part.head, ast.expr) else part.outside
            unknown.append(f"`{shown}` is absolute")
        elif not begin.is_relative:
            return begin
        elif begin.unless:
            unknown.append(begin.unless)
    first = path_beginning(flow, values[0], depth + 1)
    if first is None:
        return None
    return replace(first, unless=" or ".join([*filter(None, [first.unless]), *reversed(unknown)]))


def _made(begin: PathBeginning | None, *, is_path: bool) -> PathBeginning | None:
    """The beginning of another path, for a path or a string that is made of it; a default stays what it is."""
    return replace(begin, is_path=is_path) if begin is not None and not begin.is_default else begin


def _of_library(flow: ValueFlow, value: Value, depth: int) -> PathBeginning | None:
    """How a path begins that a function of a library gives: a path, a joined one, a command line flag."""
    name, path = f"{value.head}", value.path
    if name.startswith(_FLAGS) and not path:
        return _of_flag(flow, value.module, _absl_flags(value.module, name.removeprefix(_FLAGS)), depth)
    if not path or path[0].kind is not By.CALL:
        return None
    call: CallArguments = path[0].what
    if name == _STRING_FLAG and [*map(tuple, path[1:])] == [(By.ATTRIBUTE, "value")] and call.node is not None:
        return _of_flag(flow, value.module, [call.node], depth)
    if name == "argparse.ArgumentParser":
        steps = [step for step in path if step.kind is not By.CALL]
        if len(steps) > 1 and steps[0].what in _PARSES and steps[-1].kind is By.ATTRIBUTE:
            return _of_option(flow, value.module, steps[-1].what, (), depth)
        return None
    if len(path) > 1:
        return _of_method(flow, value, depth) if name in _PATHS else None
    if call.keywords:
        return None
    given = _positional(call)
    if name in _PATHS:
        return _made(_joined(flow, given, depth) if given else PathBeginning("."), is_path=True)
    if name in _JOINS:
        return _joined(flow, given, depth)
    if name in _UNCHANGED and len(given) == 1 and given[0] is not None:
        return _made(path_beginning(flow, given[0], depth + 1), is_path=False)
    return None


def _parameter_of_default(module: ModuleUses, node: ast.expr) -> ast.arg | None:
    """The parameter whose default the expression is, None if it is no default."""
    arguments = module.parents.get(node)
    pairs = with_defaults(arguments) if isinstance(arguments, ast.arguments) else ()
    return next((parameter for parameter, default in pairs if default is node), None)


def _overridable(begin: PathBeginning, unless: str) -> PathBeginning:
    """The beginning of a default that a caller may override."""
    return replace(begin, unless=f"{begin.unless} or {unless}" if begin.unless else unless, is_default=True)


def _absl_flags(module: ModuleUses, name: str) -> list[ast.Call]:
    """The calls that define a flag of a name; none if a value is assigned to it."""
    if _is_assigned(module, name):
        return []
    made = [module.parents.get(use.node) for use in module.uses((_STRING_FLAG,))]
    return [call for call in made if isinstance(call, ast.Call) and _text(_given(call, 0, "name")) == name]


def _of_flag(flow: ValueFlow, module: ModuleUses, calls: Sequence[ast.Call], depth: int) -> PathBeginning | None:
    if len(calls) != 1:
        return None
    default, name = _given(calls[0], 1, "default"), _text(_given(calls[0], 0, "name"))
    begin = path_beginning(flow, Value(module, default), depth + 1) if default is not None else None
    return _overridable(begin, f"`--{name}` gives another") if begin is not None else None


def _holds_options(flow: ValueFlow, module: ModuleUses, parameter: ast.arg) -> bool:
    """Whether a parameter stands for what `argparse` read: it has that class, or the name that is bound to it."""
    if parameter.annotation is not None:
        return flow.full_name(module, parameter.annotation) == _NAMESPACE
    targets = (target for each in module.nodes_of(ast.Assign) if _parses(each.value) for target in each.targets)
    firsts = (each.elts[0] if isinstance(each, ast.Tuple) else each for each in targets)
    return any(isinstance(each, ast.Name) and each.id == parameter.arg for each in firsts)


def _parses(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _PARSES


def _is_assigned(module: ModuleUses, attribute: str) -> bool:
    """Whether a value is assigned to an attribute of a name of anything but `self`, which holds no options."""
    return any(
        isinstance(node.ctx, ast.Store) and not (isinstance(node.value, ast.Name) and node.value.id == "self")
        for node in module.attributes.get(attribute, ())
    )


def _of_option(flow: ValueFlow, module: ModuleUses, name: str, rest: Path, depth: int) -> PathBeginning | None:
    """How the default of the only option of `argparse` begins that is stored by a name."""
    found = [
        (call, option)
        for call in module.nodes_of(ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
        for option in [_stored_as(call, name)]
        if option is not None
    ]
    if len(found) != 1 or rest or _is_assigned(module, name):
        return None
    call, option = found[0]
    default, kind = _given(call, None, "default"), _given(call, None, "type")
    # Another type may make the path absolute.
    made = flow.full_name(module, kind) if kind is not None else "builtins.str"
    if default is None or (made != "builtins.str" and made not in _PATHS):
        return None
    begin = path_beginning(flow, Value(module, default), depth + 1)
    return _overridable(begin, f"`{option}` gives another") if begin is not None else None


def _stored_as(call: ast.Call, name: str) -> str | None:
    """How an option is written that is stored by a name, None for one that is stored by another."""
    written = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    long = next((each for each in written if each.startswith("--")), next(iter(written), None))
    target = _given(call, None, "dest")
    stored = _text(target) if target is not None else (long or "").lstrip("-").replace("-", "_")
    return long if stored == name else None


def _given(call: ast.Call, position: int | None, name: str) -> ast.expr | None:
    """An argument by its position or name."""
    if position is not None and len(call.args) > position:
        return call.args[position]
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
