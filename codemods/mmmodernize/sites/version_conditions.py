"""What a condition about versions says of some releases: `jax.__version_info__ >= (0, 5)`, `hasattr(jax, "set_mesh")`.

Conditions are computed as Python would, from what is written: through constants and functions of the project, and in
every way to write a version. What else they read is not known.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmmodernize.names.name_index import ROOTS, TITLES, last_releases, numbers, old_names, prefixes, release_before
from mmmodernize.names.newer_index import newer_names
from mmmodernize.names.private_index import private_name
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.functions import with_defaults
from mmrewrite.source.names import Binding, Scope

# What packages are called, with JAX's binaries, which have its releases.
_PACKAGES = {name: name for name in TITLES} | {
    "jaxlib": "jax",
    "orbax": "orbax.checkpoint",
    "orbax-checkpoint": "orbax.checkpoint",
}
# What is asked for beside the packages.
PYTHON = "python"
# The oldest Python that today's releases run on, and one that none of them knows yet.
_PYTHONS = ((3, 11), (3, 19))
_LATER_PATCH = 99

_TEXT, _NUMBERS = ("__version__", "version.__version__"), ("__version_info__", "version.__version_info__")
_MADE_OF_TEXT = re.compile(
    r"(packaging\.version|pkg_resources|looseversion|(setuptools\._)?distutils\.version|pkg_resources\.extern.*)"
    r"\.(parse|parse_version|Version|LooseVersion|StrictVersion)"
)
_INSTALLED = ("importlib.metadata.version", "importlib_metadata.version")
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], object]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_OF_TEXT = frozenset(("split", "rsplit", "partition", "rpartition", "startswith", "strip", "rstrip", "lstrip"))
_PLAIN: Mapping[str, Callable[..., object]] = {
    f"builtins.{each.__name__}": each for each in (tuple, list, int, float, str, len, bool, any, all)
}
_MOST_STEPS = 400


@dataclass(frozen=True)
class Releases:
    """Releases of the packages and of Python that a condition is asked about."""

    of: Mapping[str, tuple[int, ...]]
    python: tuple[int, int]

    def has(self, name: str) -> bool | None:
        """Whether they have a name of one of the packages; None if the indexes do not say."""
        package = next((each for each in TITLES if f"{name}.".startswith(f"{each}.")), None)
        if package is None:
            return None
        wanted = ".".join(map(str, self.of[package]))
        private = private_name(name)
        if private is not None and private.gone_in(wanted) is not None:
            return False
        for each in prefixes(name):
            old, newer = old_names().get(each), newer_names().get(each)
            if (old is not None and old.gone_in(wanted)) or (newer is not None and newer.comes_after(wanted)):
                return False
        return True if name in old_names() or name in newer_names() or name in TITLES else None


@functools.cache
def today() -> Sequence[Releases]:
    """The last releases that the index knows; and again, with whatever fixes come to them."""
    last = {package: numbers(release)[:3] for package, release in last_releases().items()}
    later = {package: (*release[:2], _LATER_PATCH) for package, release in last.items()}
    return Releases(last, _PYTHONS[0]), Releases(later, _PYTHONS[1])


def at(wanted: Mapping[str, str]) -> Sequence[Releases]:
    """Some releases, and of other packages the last ones."""
    of = {**today()[0].of, **{package: numbers(release)[:3] for package, release in wanted.items()}}
    return tuple(Releases(of, python) for python in _PYTHONS)


def before(package: str, release: str) -> Sequence[Releases]:
    """Today's releases, but of one package the one before `release`."""
    older = release_before(package, release)[:3]
    return tuple(Releases({**each.of, package: older}, each.python) for each in today())


class _NotKnown(Exception):
    """A part of a condition is nothing that is computed here."""


class _VersionText(str):
    """The text of a version."""


class _Object:
    """Something that exists and of which nothing else is known."""


@dataclass(frozen=True, order=True)
class _Version:
    """A version that is made of text, compared by its numbers; also with a tuple of them."""

    release: tuple[int, ...]

    @classmethod
    def of(cls, text: object) -> _Version:
        if isinstance(text, _Version):
            return text
        if isinstance(text, tuple) and text and all(isinstance(each, int) for each in text):
            text = ".".join(map(str, text))
        if not isinstance(text, str) or re.fullmatch(r"\d+(\.\d+)*", text) is None:
            raise _NotKnown
        release = tuple(map(int, text.split(".")))
        while len(release) > 1 and not release[-1]:
            release = release[:-1]
        return cls(release)


@dataclass(frozen=True)
class _Members:
    """The names in a module, as `dir` gives them."""

    module: str


@dataclass
class ConditionReader:
    """Computes conditions for some releases.

    `asked` is the package whose releases decide a part that is not known, and `read` one that any part asks for. `runs`
    says whether the releases come to a statement where they come to what is around it, None if that is not known.
    """

    releases: Releases
    runs: Callable[[ModuleUses, ast.AST, ast.AST, ConditionReader], bool | None]
    asked: str | None = None
    read: str | None = None
    is_text: bool = False
    _steps: int = 0
    _following: set[ast.AST] = field(default_factory=set)

    def truth(self, module: ModuleUses, test: ast.expr, scope: Scope) -> bool | None:
        """Whether a condition holds; None if it is not known. Of `a and b` one part may decide."""
        match test:
            case ast.BoolOp(op=joined, values=values):
                decides, found = isinstance(joined, ast.Or), [self.truth(module, each, scope) for each in values]
                return decides if decides in found else (None if None in found else not decides)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                opposite = self.truth(module, operand, scope)
                return None if opposite is None else not opposite
            case _:
                outer, self.read = self.read, None
                try:
                    holds = bool(self.value(module, test, scope, {}))
                    # What asks for no version may be set by hand.
                    return holds if self.read is not None else None
                except _NotKnown:
                    asked = self.read or _named_in(module, test, scope)
                    self.asked = self.asked or (asked if asked != PYTHON else None)
                    return None
                finally:
                    self.read = self.read or outer

    def value(self, module: ModuleUses, node: ast.expr, scope: Scope, own: Mapping[str, object]) -> object:
        """The value of an expression.

        Args:
            module: The module that it stands in.
            node: The expression.
            scope: The scope that it is evaluated in.
            own: The values of names of a function or comprehension.

        Raises:
            _NotKnown: If it is none that is computed here.
        """
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise _NotKnown

        def of(part: ast.expr) -> object:
            return self.value(module, part, scope, own)

        match node:
            case ast.Constant(value=value):
                return value
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                found = [of(each) for each in parts]
                return tuple(found) if isinstance(node, ast.Tuple) else found
            case ast.Name(id=name) if name in own:
                return own[name]
            case ast.Name() | ast.Attribute():
                return self._named(module, node, scope, own)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not of(operand)
            case ast.BoolOp(op=joined, values=values):
                for each in values:
                    last = of(each)
                    if bool(last) is isinstance(joined, ast.Or):
                        break
                return last
            case ast.IfExp():
                return of(node.body if of(node.test) else node.orelse)
            case ast.NamedExpr(value=inner):
                return of(inner)
            case ast.Compare():
                sides = [of(node.left), *map(of, node.comparators)]
                return all(map(self._compared, node.ops, sides, sides[1:]))
            case ast.Subscript():
                return self._item(of(node.value), node.slice, of)
            case ast.ListComp(elt=each, generators=[one]) | ast.GeneratorExp(elt=each, generators=[one]):
                return list(self._comprehended(module, each, one, scope, own))
            case ast.Call():
                return self._called(module, node, scope, own)
            case _:
                raise _NotKnown

    def _named(
        self, module: ModuleUses, node: ast.Name | ast.Attribute, scope: Scope, own: Mapping[str, object]
    ) -> object:
        full = module.facts.names.resolve(node, scope)
        if full is not None and (version := self._version(full)) is not None:
            return version
        bound = self._definition(module, node, full, scope)
        if bound is not None:
            owner, binding, around = bound
            if binding.value is None or binding.kind != "value" or binding.node in self._following:
                raise _NotKnown
            self._following.add(binding.node)
            try:
                names = owner.facts.names
                return self.value(owner, binding.value, names.evaluates(binding, around), {})
            finally:
                self._following.discard(binding.node)
        if isinstance(node, ast.Attribute):
            value = self.value(module, node.value, scope, own)
            if isinstance(value, _Version) and node.attr == "release":
                return value.release
            part = {"major": 0, "minor": 1, "micro": 2, "patch": 2}.get(node.attr)
            row = value.release if isinstance(value, _Version) else value
            if part is not None and isinstance(row, tuple):
                return (*row, 0, 0, 0)[part]
        raise _NotKnown

    def _version(self, full: str) -> object:
        """The version that a full name stands for, None if it is none."""
        if full == "sys.version_info":
            self.read = PYTHON
            return (*self.releases.python, 0)
        package, _, member = full.partition(".")
        if package == "orbax":
            package, _, member = "orbax.checkpoint", "", full.removeprefix("orbax.checkpoint.")
        if package not in _PACKAGES or member not in (*_TEXT, *_NUMBERS):
            return None
        return self._release(package, as_text=member in _TEXT)

    def _release(self, package: str, *, as_text: bool) -> object:
        self.read = _PACKAGES[package]
        release = self.releases.of[self.read]
        return _VersionText(".".join(map(str, release))) if as_text else release

    def _definition(
        self, module: ModuleUses, node: ast.expr, full: str | None, scope: Scope
    ) -> tuple[ModuleUses, Binding, Scope] | None:
        """The one binding of a name of the project that may have run, with its module and the scope that has it."""
        owner: Scope | None = None
        found: Sequence[Binding] = ()
        if isinstance(node, ast.Name):
            owner = scope.owner(node.id)
            found = owner.bindings[node.id] if owner is not None else ()
        if full is not None and (owner is None or any(each.kind == "import" for each in found)):
            home, _, name = full.rpartition(".")
            other = module.elsewhere(home) if home else None
            if other is not None and name in other.facts.names.scope.bindings:
                module, owner = other, other.facts.names.scope
                found = owner.bindings[name]
        if owner is None:
            return None
        # Not known, if what decides it is this.
        if len(found) > 1:
            found = self._last_of(module, found, owner)
        return (module, found[0], owner) if len(found) == 1 else None

    def _last_of(self, module: ModuleUses, bindings: Sequence[Binding], owner: Scope) -> Sequence[Binding]:
        """The bindings that a name may have in the end, by the branches that the releases take."""
        if any(each.node in self._following for each in bindings):
            return bindings
        self._following.update(each.node for each in bindings)
        try:
            ran = [
                (each, found)
                for each in bindings
                if (found := self.runs(module, each.node, owner.node, self)) is not False
            ]
        finally:
            self._following.difference_update(each.node for each in bindings)
        certain = [place for place, (_, found) in enumerate(ran) if found]
        return [each for each, _ in ran[max(certain, default=0) :]]

    def _compared(self, kind: ast.cmpop, left: object, right: object) -> bool:
        if isinstance(kind, ast.In | ast.NotIn):
            if isinstance(right, _Members) and isinstance(left, str):
                return self._has(right.module, left) is isinstance(kind, ast.In)
            if not isinstance(right, tuple | list | str) or isinstance(right, str) is not isinstance(left, str):
                raise _NotKnown
            return (left in right) is isinstance(kind, ast.In)
        if isinstance(kind, ast.Is | ast.IsNot) and left is not None and right is not None:
            raise _NotKnown
        if isinstance(left, _Version) or isinstance(right, _Version):
            left, right = _Version.of(left), _Version.of(right)
        compare, sides = _COMPARED[type(kind)], (left, right)
        if any(isinstance(each, _Object | _Members) for each in sides) and not isinstance(kind, ast.Is | ast.IsNot):
            raise _NotKnown
        found = _made(compare, *sides)
        if any(isinstance(each, _VersionText) for each in sides) and found is not compare(*map(_Version.of, sides)):
            self.is_text = True
        return bool(found)

    def _item(self, value: object, place: ast.expr, of: Callable[[ast.expr], object]) -> object:
        if not isinstance(value, tuple | list | str):
            raise _NotKnown
        if isinstance(place, ast.Slice):
            parts = [None if each is None else of(each) for each in (place.lower, place.upper, place.step)]
            return _made(operator.getitem, value, _made(slice, *parts))
        return _made(operator.getitem, value, of(place))

    def _comprehended(
        self, module: ModuleUses, each: ast.expr, one: ast.comprehension, scope: Scope, own: Mapping[str, object]
    ) -> Iterator[object]:
        values = self.value(module, one.iter, scope, own)
        if not isinstance(values, tuple | list) or not isinstance(one.target, ast.Name):
            raise _NotKnown
        for value in values:
            inner = {**own, one.target.id: value}
            if all(self.value(module, test, scope, inner) for test in one.ifs):
                yield self.value(module, each, scope, inner)

    def _called(self, module: ModuleUses, node: ast.Call, scope: Scope, own: Mapping[str, object]) -> object:
        if node.keywords or any(isinstance(each, ast.Starred) for each in node.args):
            raise _NotKnown
        full = module.facts.names.resolve(node.func, scope) or ""
        first = node.args[0] if node.args else None
        if full in ("builtins.hasattr", "builtins.getattr", "builtins.dir") and first is not None:
            home = module.facts.names.resolve(first, scope)
            if home is None or home.partition(".")[0] not in ROOTS:
                raise _NotKnown
            if full == "builtins.dir":
                return _Members(home)
            is_there = self._has(home, self.value(module, node.args[1], scope, own))
            if full == "builtins.hasattr":
                return is_there
            if not is_there and len(node.args) == 3:
                return self.value(module, node.args[2], scope, own)
            return _Object()
        if full == "builtins.map" and len(node.args) == 2:
            made = _PLAIN.get(module.facts.names.resolve(node.args[0], scope) or "")
            values = self.value(module, node.args[1], scope, own)
            if made is None or not isinstance(values, tuple | list):
                raise _NotKnown
            return [_made(made, each) for each in values]
        arguments = [self.value(module, each, scope, own) for each in node.args]
        if full in _PLAIN:
            return _made(_PLAIN[full], *arguments)
        if _MADE_OF_TEXT.fullmatch(full) is not None and len(arguments) == 1:
            return _Version.of(arguments[0])
        if full in _INSTALLED and len(arguments) == 1:
            if arguments[0] not in _PACKAGES:
                raise _NotKnown
            return self._release(str(arguments[0]), as_text=True)
        if full == "importlib.util.find_spec" and len(arguments) == 1:
            home, _, name = str(arguments[0]).rpartition(".")
            return _Object() if self._has(home, name, is_module=True) else None
        bound = self._definition(module, node.func, full or None, scope)
        if bound is not None:
            return self._returned(*bound, arguments)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _OF_TEXT:
            text = self.value(module, node.func.value, scope, own)
            if isinstance(text, str):
                return _made(getattr(text, node.func.attr), *arguments)
        if len(arguments) == 1 and not full.startswith("builtins."):
            # What a function out of view makes of a version's text.
            return _Version.of(arguments[0])
        raise _NotKnown

    def _has(self, home: str, name: object, *, is_module: bool = False) -> bool:
        """Whether a module, or what else has a full name, has something."""
        package = next((title for title in TITLES if f"{home}.".startswith(f"{title}.")), None)
        if package is None or not isinstance(name, str):
            raise _NotKnown
        self.read = package
        full = f"{home}.{name}"
        found = self.releases.has(full)
        # A module is there once something imports it.
        is_late = found and not is_module and full in _homes()
        if found is None or is_late:
            raise _NotKnown
        return found

    def _returned(self, module: ModuleUses, binding: Binding, around: Scope, arguments: Sequence[object]) -> object:
        """What a function of the project returns."""
        function = binding.node if binding.value is None else binding.value
        if function in self._following or not isinstance(function, ast.FunctionDef | ast.Lambda):
            raise _NotKnown
        inner = module.facts.names.inner[function]
        own = self._arguments(module, function, around, arguments)
        if isinstance(function, ast.FunctionDef) and function.decorator_list:
            names = [module.facts.names.resolve(each, around) for each in function.decorator_list]
            if any(name not in ("functools.cache", "functools.lru_cache") for name in names):
                raise _NotKnown
        self._following.add(function)
        try:
            if isinstance(function, ast.Lambda):
                return self.value(module, function.body, inner, own)
            done = self._run(module, function.body, inner, own)
            return done[0] if done else None
        finally:
            self._following.discard(function)

    def _arguments(
        self, module: ModuleUses, function: ast.FunctionDef | ast.Lambda, around: Scope, values: Sequence[object]
    ) -> dict[str, object]:
        own: dict[str, object] = {}
        given = iter(values)
        positional = [*function.args.posonlyargs, *function.args.args]
        for parameter, default in with_defaults(function.args):
            value = next(given, _NotKnown) if parameter in positional else _NotKnown
            if value is _NotKnown:
                if default is None:
                    raise _NotKnown
                value = self.value(module, default, around, {})
            own[parameter.arg] = value
        rest = tuple(given)
        if function.args.vararg is not None:
            own[function.args.vararg.arg] = rest
        elif rest:
            raise _NotKnown
        return own

    def _run(
        self, module: ModuleUses, body: Sequence[ast.stmt], scope: Scope, own: dict[str, object]
    ) -> tuple[object] | None:
        """What statements return, in a row of one; None if they end without."""
        for statement in body:
            match statement:
                case ast.Return(value=value):
                    return (None if value is None else self.value(module, value, scope, own),)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    own[name] = self.value(module, value, scope, own)
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value):
                    values = self.value(module, value, scope, own)
                    names = [each.id for each in targets if isinstance(each, ast.Name)]
                    if not isinstance(values, tuple | list) or not len(names) == len(targets) == len(values):
                        raise _NotKnown
                    own.update(zip(names, values, strict=True))
                case ast.If(test=test):
                    branch = statement.body if self.value(module, test, scope, own) else statement.orelse
                    done = self._run(module, branch, scope, own)
                    if done is not None:
                        return done
                case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom() | ast.Pass():
                    pass
                case _:
                    raise _NotKnown
        return None


@functools.cache
def _homes() -> frozenset[str]:
    """What holds other names of the indexes."""
    return frozenset(each for name in (*old_names(), *newer_names()) for each in prefixes(name.rpartition(".")[0]))


def _made(function: Callable[..., object], *values: object) -> object:
    try:
        return function(*values)
    except (TypeError, ValueError, IndexError) as error:
        raise _NotKnown from error


def _named_in(module: ModuleUses, test: ast.expr, scope: Scope) -> str | None:
    """The package whose version or names an expression asks for, in a way that cannot be computed."""
    names = module.facts.names
    for node in ast.walk(test):
        found = ""
        if isinstance(node, ast.Attribute | ast.Name):
            full = names.resolve(node, scope) or ""
            found = full if full.endswith((".__version__", ".__version_info__", ".version")) else ""
        elif isinstance(node, ast.Call) and node.args:
            is_probe = names.resolve(node.func, scope) in ("builtins.hasattr", "builtins.getattr")
            found = (names.resolve(node.args[0], scope) or "") if is_probe else ""
        if found.partition(".")[0] in _PACKAGES:
            return _PACKAGES[found.partition(".")[0]]
    return None
