"""With which text a path begins, where the source shows it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmrewrite.project.project import Project
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Binding, all_arguments

_PATHS = frozenset(("pathlib.Path", "pathlib.PosixPath", "etils.epath.Path"))
_JOINS = frozenset(("os.path.join", "posixpath.join"))
# What gives a relative path for a relative one.
_UNCHANGED = frozenset(("builtins.str", "os.fspath", "os.path.normpath", "posixpath.normpath"))
_PARSES = frozenset(("parse_args", "parse_known_args"))
_STRING_FLAG = "absl.flags.DEFINE_string"
_FLAGS = "absl.flags.FLAGS."
_NAMESPACE = "argparse.Namespace"
_DEEPEST = 6


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


def path_beginning(project: Project, module: ModuleUses, node: ast.expr, depth: int = 0) -> PathBeginning | None:
    """The text with which a path begins, None if the source does not show any."""
    if depth > _DEEPEST:
        return None
    match node:
        case ast.Constant(value=str(text)):
            return _constant(text)
        case ast.JoinedStr(values=[first, *_]) | ast.BinOp(left=first, op=ast.Add()):
            return path_beginning(project, module, first, depth + 1)
        case ast.FormattedValue(value=first, conversion=-1, format_spec=None):
            return path_beginning(project, module, first, depth + 1)
        case ast.FormattedValue(format_spec=ast.JoinedStr(values=[ast.Constant(value=str(shape))])):
            return PathBeginning("0") if shape.endswith("d") else None
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return _constant(text.partition("%")[0])
        case ast.BinOp(left=first, op=ast.Div(), right=last):
            return _joined(project, module, [first, last], depth)
        case ast.Name():
            return _of_name(project, module, node, depth)
        case ast.Attribute():
            return _of_attribute(project, module, node, depth)
        case ast.Call():
            return _of_call(project, module, node, depth)
        case _:
            return None


def _constant(text: str) -> PathBeginning | None:
    return PathBeginning(text) if text else None


def _joined(project: Project, module: ModuleUses, parts: Sequence[ast.expr], depth: int) -> PathBeginning | None:
    """The beginning of joined parts of a path, of which an absolute one takes the place of all before it."""
    if not parts or any(isinstance(part, ast.Starred) for part in parts):
        return None
    unknown: list[str] = []
    for part in reversed(parts[1:]):
        begin = path_beginning(project, module, part, depth + 1)
        if begin is None:
            unknown.append(f"`{ast.unparse(part)}` is absolute")
        elif not begin.is_relative:
            return begin
        elif begin.unless:
            unknown.append(begin.unless)
    first = path_beginning(project, module, parts[0], depth + 1)
    if first is None:
        return None
    return replace(first, unless=" or ".join([*filter(None, [first.unless]), *reversed(unknown)]))


def _made(begin: PathBeginning | None, *, is_path: bool) -> PathBeginning | None:
    """The beginning of a path or a string that is made of another; a default stays what it is."""
    return replace(begin, is_path=is_path) if begin is not None and not begin.is_default else begin


def _of_call(project: Project, module: ModuleUses, call: ast.Call, depth: int) -> PathBeginning | None:
    name = module.facts.names.resolve(call.func, module.scope_of(call))
    if call.keywords and name is not None:
        return None
    if name in _PATHS:
        return _made(_joined(project, module, call.args, depth) if call.args else PathBeginning("."), is_path=True)
    if name in _JOINS:
        return _joined(project, module, call.args, depth)
    if name in _UNCHANGED and len(call.args) == 1:
        return _made(path_beginning(project, module, call.args[0], depth + 1), is_path=False)
    match call.func:
        case ast.Attribute(value=ast.Constant(value=str(text)), attr="format"):
            return _constant(text.partition("{")[0])
        case ast.Attribute(value=first, attr="joinpath") if not call.keywords:
            return _joined(project, module, [first, *call.args], depth)
        case _:
            return None


def _of_name(project: Project, module: ModuleUses, node: ast.Name, depth: int) -> PathBeginning | None:
    binding = module.facts.names.binding(node.id, module.scope_of(node))
    if binding is None:
        return None
    if binding.value is not None:
        return path_beginning(project, module, binding.value, depth + 1)
    if binding.target is not None:
        return _of_another(project, module, binding.target, depth)
    default = _default_of(module, binding)
    return (
        _overridable(project, module, default, f"a caller passes another `{node.id}`", depth)
        if default is not None
        else None
    )


def _of_another(project: Project, module: ModuleUses, name: str, depth: int) -> PathBeginning | None:
    """The beginning of a constant of another module, by its full name."""
    found = project.definition(module.facts.names.follow(name), module.facts)
    value = found[1].value if found is not None and found[0] is not module.facts else None
    return path_beginning(project, ModuleUses(found[0]), value, depth + 1) if found and value is not None else None


def _of_own(project: Project, module: ModuleUses, node: ast.Attribute, depth: int) -> PathBeginning | None:
    """The beginning of an attribute of `self` in a method, where one statement of the class gives it a value."""
    assert isinstance(node.value, ast.Name)
    owner = module.scope_of(node).owner(node.value.id)
    if owner is None or owner.parent is None or not isinstance(owner.node, ast.FunctionDef):
        return None
    holder, first = owner.parent.node, next(all_arguments(owner.node.args), None)
    if not isinstance(holder, ast.ClassDef) or [each.node for each in owner.bindings[node.value.id]] != [first]:
        return None
    in_body = [each.value for each in module.facts.names.inner[holder].bindings.get(node.attr, ())]
    values = [*in_body, *module.own_values.get((holder, node.attr), ())]
    return path_beginning(project, module, values[0], depth + 1) if len(values) == 1 and values[0] is not None else None


def _default_of(module: ModuleUses, binding: Binding) -> ast.expr | None:
    """The default of a parameter."""
    arguments = module.parents.get(binding.node)
    if not isinstance(binding.node, ast.arg) or not isinstance(arguments, ast.arguments):
        return None
    by_place = [*arguments.posonlyargs, *arguments.args]
    pairs: list[tuple[ast.arg, ast.expr | None]] = [
        *zip(reversed(by_place), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return next((default for parameter, default in pairs if parameter is binding.node), None)


def _overridable(
    project: Project, module: ModuleUses, default: ast.expr, unless: str, depth: int
) -> PathBeginning | None:
    """The beginning of a default, in the place of which another value may be."""
    begin = path_beginning(project, module, default, depth + 1)
    if begin is None:
        return None
    return replace(begin, unless=f"{begin.unless} or {unless}" if begin.unless else unless, is_default=True)


def _of_attribute(project: Project, module: ModuleUses, node: ast.Attribute, depth: int) -> PathBeginning | None:
    """The beginning of a command line flag (`args.name`, `FLAGS.name`, `NAME.value`) or of the folder of a path."""
    if node.attr == "parent":
        begin = path_beginning(project, module, node.value, depth + 1)
        # The folder of "ckpt" is "."; that of a default that is one word would be another than the default.
        return begin if begin is not None and begin.is_path and not begin.is_default else None
    name = module.facts.names.resolve(node, module.scope_of(node)) or ""
    if name.startswith(_FLAGS):
        return _of_flag(project, module, _absl_flags(module, name.removeprefix(_FLAGS)), depth)
    if not isinstance(node.value, ast.Name):
        return _of_another(project, module, name, depth)
    binding = module.facts.names.binding(node.value.id, module.scope_of(node))
    if binding is None:
        return None
    if binding.target is not None:
        return _of_another(project, module, name, depth)
    value = binding.value
    if node.attr == "value" and isinstance(value, ast.Call):
        is_flag = module.facts.names.resolve(value.func, module.scope_of(value)) == _STRING_FLAG
        return _of_flag(project, module, [value], depth) if is_flag else None
    if _holds_options(module, node.value, binding) and not _is_assigned(module, node.attr):
        return _of_option(project, module, node.attr, depth)
    return _of_own(project, module, node, depth)


def _absl_flags(module: ModuleUses, name: str) -> list[ast.Call]:
    """The calls that define a flag of a name; none if a value is assigned to it."""
    if _is_assigned(module, name):
        return []
    made = [module.parents.get(use.node) for use in module.uses((_STRING_FLAG,))]
    return [call for call in made if isinstance(call, ast.Call) and _text(_given(call, 0, "name")) == name]


def _of_flag(project: Project, module: ModuleUses, calls: Sequence[ast.Call], depth: int) -> PathBeginning | None:
    if len(calls) != 1:
        return None
    default, name = _given(calls[0], 1, "default"), _text(_given(calls[0], 0, "name"))
    return _overridable(project, module, default, f"`--{name}` gives another", depth) if default is not None else None


def _holds_options(module: ModuleUses, node: ast.Name, binding: Binding) -> bool:
    """Whether a name stands for what `argparse` read: it is bound to that, or is a parameter of that name or class."""
    if binding.kind == "parameter":
        annotation = getattr(binding.node, "annotation", None)
        if annotation is not None:
            return module.facts.names.resolve(annotation, module.scope_of(annotation)) == _NAMESPACE
        targets = (target for each in module.nodes_of(ast.Assign) if _parses(each.value) for target in each.targets)
        firsts = (each.elts[0] if isinstance(each, ast.Tuple) else each for each in targets)
        return any(isinstance(each, ast.Name) and each.id == node.id for each in firsts)
    statement = binding.statement
    return isinstance(statement, ast.Assign) and _parses(statement.value)


def _parses(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _PARSES


def _is_assigned(module: ModuleUses, attribute: str) -> bool:
    """Whether a value is assigned to an attribute of a name of anything but `self`, which holds no options."""
    return any(
        node.attr == attribute
        and isinstance(node.ctx, ast.Store)
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
        for node in module.nodes_of(ast.Attribute)
    )


def _of_option(project: Project, module: ModuleUses, name: str, depth: int) -> PathBeginning | None:
    """The beginning of the default of the only option of `argparse` that is stored by a name."""
    found = [
        (call, option)
        for call in module.nodes_of(ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
        for option in [_stored_as(call, name)]
        if option is not None
    ]
    if len(found) != 1:
        return None
    call, option = found[0]
    default, kind = _given(call, None, "default"), _given(call, None, "type")
    # Another type may make the path absolute.
    made = module.facts.names.resolve(kind, module.scope_of(kind)) if kind is not None else "builtins.str"
    if default is None or (made != "builtins.str" and made not in _PATHS):
        return None
    return _overridable(project, module, default, f"`{option}` gives another", depth)


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
