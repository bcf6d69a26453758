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
from mmrewrite.source.names import Scope
from mmrewrite.values.flow import ValueFlow
from mmrewrite.values.library import is_followed
from mmrewrite.values.value import (
    ANY_ITEM,
    Access,
    By,
    CallArguments,
    CallFrame,
    Display,
    Key,
    Path,
    Unknown,
    Value,
    attribute,
)

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
# What is computed here, though values are followed through it elsewhere.
_OWN = frozenset((*_PLAIN, *_INSTALLED, *(f"builtins.{name}" for name in ("hasattr", "getattr", "dir", "map"))))
_MOST_STEPS = 1000


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


# What is computed of its parts; whatever else is written, the flow of values goes back from.
_COMPUTED = (
    *(ast.Constant, ast.Tuple, ast.List, ast.UnaryOp, ast.BoolOp, ast.IfExp, ast.NamedExpr, ast.Compare),
    *(ast.Subscript, ast.ListComp, ast.GeneratorExp, Display),
)


@dataclass
class ConditionReader:
    """Computes conditions for some releases.

    `asked` is the package whose releases decide a part that is not known, and `read` one that any part asks for. `runs`
    says whether the releases come to a statement where they come to what is around it, None if that is not known.
    `frame` is the call by which that is asked of a function.
    """

    releases: Releases
    flow: ValueFlow
    runs: Callable[[ModuleUses, ast.AST, ast.AST, ConditionReader], bool | None]
    asked: str | None = None
    read: str | None = None
    is_text: bool = False
    frame: CallFrame | None = None
    _steps: int = 0
    _following: set[Value] = field(default_factory=set)
    _elements: dict[ast.AST, object] = field(default_factory=dict)

    def truth(self, module: ModuleUses, test: ast.expr) -> bool | None:
        """Whether a condition holds; None if it is not known. Of `a and b` one part may decide."""
        match test:
            case ast.BoolOp(op=joined, values=values):
                decides, found = isinstance(joined, ast.Or), [self.truth(module, each) for each in values]
                return decides if decides in found else (None if None in found else not decides)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                opposite = self.truth(module, operand)
                return None if opposite is None else not opposite
            case _:
                outer, self.read = self.read, None
                try:
                    holds = bool(self.value(Value(module, test, (), self.frame)))
                    # What asks for no version may be set by hand, but for what a call in view is given.
                    return holds if self.read is not None or self.frame is not None else None
                except _NotKnown:
                    asked = self.read or _named_in(module, test, module.scope_of(test))
                    self.asked = self.asked or (asked if asked != PYTHON else None)
                    return None
                finally:
                    self.read = self.read or outer

    def value(self, value: Value) -> object:
        """What a value is.

        Raises:
            _NotKnown: If it is nothing that is computed here.
        """
        self._steps += 1
        if self._steps > _MOST_STEPS or value in self._following:
            raise _NotKnown
        match value:
            case (_, str(name), path, _) if name in _OWN or not is_followed(name):
                return self._outside(name, path)
            case (_, head, path, _) if isinstance(head, _COMPUTED):
                return self._done(self._computed(value), path)
            case (module, ast.Name(id=name) as node, path, _):
                owner = module.scope_of(node).owner(name)
                bound = owner.bindings[name][0].node if owner is not None else None
                if bound in self._elements:
                    return self._done(self._elements[bound], path)
                if owner is None and path and path[0].kind is By.CALL and module.full_name(node) is None:
                    return self._done(self._called("", path[0].what), path[1:])
            case _:
                pass
        self._following.add(value)
        try:
            before = self._before(value)
            return None if before is None else self.value(before)
        finally:
            self._following.discard(value)

    def _before(self, value: Value) -> Value | None:
        """The one value that another is where the releases run; None for a function that ends without one."""
        head, found = value.head, list[Value]()
        for each in self.flow.behind(value):
            if isinstance(each, Unknown):
                raise _NotKnown
            found.append(each)
        is_returned = isinstance(head, ast.FunctionDef) and bool(value.path) and value.path[0].kind is By.CALL
        if len(found) > 1 or is_returned:
            found = [*self._run(value, found, is_first=is_returned)]
        if len(found) != 1 and not (is_returned and not found):
            raise _NotKnown
        is_list = bool(found) and isinstance(found[0].head, ast.List | ast.ListComp)
        if is_list and len(self.flow.behind(value.done(ANY_ITEM))) > 1:
            # More is put into it later.
            raise _NotKnown
        return found[0] if found else None

    def _run(self, value: Value, found: Sequence[Value], *, is_first: bool) -> Sequence[Value]:
        """Those of several values that stand where the releases run: up to the first, or from the last that does."""
        owner = value.module.scope_of(value.head).owner(value.head.id) if isinstance(value.head, ast.Name) else None
        outer, runs = self.frame, list[tuple[Value, bool | None]]()
        for each in found:
            around = value.head if is_first else owner.node if owner is not None else each.module.facts.tree
            if isinstance(each.head, str):
                # It is imported, if it is there.
                runs.append((each, self._has(*each.head.rpartition(".")[::2])))
                continue
            is_written = isinstance(each.head, ast.stmt) or each.head in each.module.parents
            if not isinstance(each.head, ast.AST) or not is_written or not isinstance(around, ast.AST):
                raise _NotKnown
            self.frame = each.frame
            try:
                runs.append((each, self.runs(each.module, each.module.statement_of(each.head), around, self)))
            finally:
                self.frame = outer
        certain = [place for place, (_, is_run) in enumerate(runs) if is_run]
        if is_first:
            runs = runs[: certain[0] + 1] if certain else runs
        else:
            runs = runs[max(certain, default=0) :]
        return [each for each, is_run in runs if is_run is not False]

    def _computed(self, value: Value) -> object:
        """What an expression is that has parts, before anything is done to it."""
        node = value.head

        def of(part: ast.expr) -> object:
            return self.value(Value(value.module, part, (), value.frame))

        match node:
            case Display(is_mapping=False, is_loose=False, entries=entries) if not any(each for *_, each in entries):
                return tuple(self.value(each) for _, each, _ in entries)
            case ast.Constant(value=constant):
                return constant
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                found = [of(each) for each in parts]
                return tuple(found) if isinstance(node, ast.Tuple) else found
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
            case ast.Subscript(value=held, slice=ast.Slice() as cut):
                parts_of_slice = [None if each is None else of(each) for each in (cut.lower, cut.upper, cut.step)]
                return _item(of(held), _made(slice, *parts_of_slice))
            case ast.Subscript(value=held, slice=key):
                return _item(of(held), of(key))
            case ast.ListComp(elt=each, generators=[one]) | ast.GeneratorExp(elt=each, generators=[one]):
                return list(self._comprehended(each, one, of))
            case _:
                raise _NotKnown

    def _comprehended(
        self, each: ast.expr, one: ast.comprehension, of: Callable[[ast.expr], object]
    ) -> Iterator[object]:
        values = of(one.iter)
        if not isinstance(values, tuple | list) or not isinstance(one.target, ast.Name):
            raise _NotKnown
        for value in values:
            self._elements[one.target] = value
            if all(map(of, one.ifs)):
                yield of(each)

    def _done(self, found: object, path: Path) -> object:
        """What some steps make of what is known."""
        match path:
            case []:
                return found
            case [Access(By.ATTRIBUTE, "release"), *rest] if isinstance(found, _Version):
                return self._done(found.release, (*rest,))
            case [Access(By.ATTRIBUTE, "major" | "minor" | "micro" | "patch" as part), *rest] if isinstance(
                row := found.release if isinstance(found, _Version) else found, tuple
            ):
                place = {"major": 0, "minor": 1}.get(part, 2)
                return self._done((*row, 0, 0, 0)[place], (*rest,))
            case [Access(By.ATTRIBUTE, str(method)), Access(By.CALL, call), *rest] if method in _OF_TEXT and isinstance(
                found, str
            ):
                return self._done(_made(getattr(found, method), *self._arguments(call)), (*rest,))
            case [Access(By.ITEM, Key(text=key)), *rest]:
                return self._done(_item(found, key), (*rest,))
            case _:
                raise _NotKnown

    def _arguments(self, call: CallArguments) -> list[object]:
        if call.keywords or any(each.is_starred for each in call.positional):
            raise _NotKnown
        return [self.value(each.value) for each in call.positional]

    def _outside(self, name: str, path: Path) -> object:
        """What something out of the project is, such as a version, or what a function gives for one."""
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            version = self._version(".".join(parts[:length]))
            if version is not None:
                return self._done(version, (*map(attribute, parts[length:]), *path))
        if not path or path[0].kind is not By.CALL:
            raise _NotKnown
        return self._done(self._called(name, path[0].what), path[1:])

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

    def _called(self, name: str, call: CallArguments) -> object:
        """What a function out of the project gives."""
        first = call.first()
        if name in ("builtins.hasattr", "builtins.getattr", "builtins.dir") and first is not None:
            home = self.flow.must(first, _full_name)
            if home is None or home.partition(".")[0] not in ROOTS:
                raise _NotKnown
            if name == "builtins.dir":
                return _Members(home)
            asked, default = call.at(1), call.at(2)
            is_there = asked is not None and self._has(home, self.value(asked))
            if name == "builtins.hasattr":
                return is_there
            return self.value(default) if not is_there and default is not None else _Object()
        if name == "builtins.map" and first is not None and len(call.positional) == 2:
            made, values = _PLAIN.get(self.flow.must(first, _full_name) or ""), self.value(call.positional[1].value)
            if made is None or not isinstance(values, tuple | list):
                raise _NotKnown
            return [_made(made, each) for each in values]
        arguments = self._arguments(call)
        if name in _PLAIN:
            return _made(_PLAIN[name], *arguments)
        if _MADE_OF_TEXT.fullmatch(name) is not None and len(arguments) == 1:
            return _Version.of(arguments[0])
        if name in _INSTALLED and len(arguments) == 1:
            if arguments[0] not in _PACKAGES:
                raise _NotKnown
            return self._release(str(arguments[0]), as_text=True)
        if name == "importlib.util.find_spec" and len(arguments) == 1:
            home, _, own = str(arguments[0]).rpartition(".")
            return _Object() if self._has(home, own, is_module=True) else None
        if len(arguments) == 1 and not name.startswith("builtins."):
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


@functools.cache
def _homes() -> frozenset[str]:
    """What holds other names of the indexes."""
    return frozenset(each for name in (*old_names(), *newer_names()) for each in prefixes(name.rpartition(".")[0]))


def _full_name(value: Value) -> str | None:
    return value.head if isinstance(value.head, str) and not value.path else None


def _item(found: object, key: object) -> object:
    if not isinstance(found, tuple | list | str):
        raise _NotKnown
    return _made(operator.getitem, found, key)


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
