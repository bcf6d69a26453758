"""Code that chooses by the version of JAX or its libraries: which of it runs today, and what copes with another JAX."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mmmodernize.names.name_index import ROOTS, TITLES, old_names, prefixes
from mmmodernize.names.private_index import private_name
from mmmodernize.sites.version_conditions import PYTHON, ConditionReader, Releases, at, before, today
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import root_of
from mmrewrite.values.flow import values_of

_ANY = frozenset(("Exception", "BaseException"))
# What a statement raises that needs a name which is gone, and which exceptions are that.
_CAUGHT = {
    "ModuleNotFoundError": _ANY | {"ImportError", "ModuleNotFoundError"},
    "ImportError": _ANY | {"ImportError"},
    "AttributeError": _ANY | {"AttributeError"},
}
# Whether a condition skips a test where it holds, or where it does not.
_SKIPS = {"pytest.mark.skipif": True, "unittest.skipIf": True, "unittest.skipUnless": False}


@dataclass(frozen=True)
class Guard:
    """What keeps code from running on releases that it was not written for.

    Attributes:
        reason: The `try` or `if`, in words for a message.
        is_settled: Whether nothing is left to do: today's releases never come here, or a failure is coped with. If not,
            a version decides in a way that is not known, or not as it was meant.
        package: The package whose releases decide.
        runs: Whether today's releases do run it, as versions are compared as text.
    """

    reason: str
    is_settled: bool = True
    package: str = "jax"
    runs: bool = False


def guard_of(
    module: ModuleUses,
    node: ast.AST,
    change: tuple[str, str] | None = None,
    wanted: Mapping[str, str] | None = None,
) -> Guard | None:
    """What guards a node against another JAX; None if today's releases run it and nothing copes with its failure.

    None guards a use that is never reached, since the import of its name raises before.

    Args:
        module: The module of the node.
        node: The node.
        change: The package and the release with which a name means something else: the branch that is taken from there
            on means that.
        wanted: Releases to ask about in place of today's.
    """
    guard = _Guards(module, today() if wanted is None else at(wanted), change).of(node)
    return None if guard is not None and _fails_before(module, node) else guard


def is_chosen(module: ModuleUses, node: ast.AST) -> bool:
    """Whether a node stands in a branch of a choice by the version, whichever, or in a `try` that copes with one."""
    if _Guards(module, today()).of(node) is not None:
        return True
    holders = (holder for holder in module.above(node) if isinstance(holder, ast.If | ast.IfExp))
    return any(_answer(module, holder.test, today()).asked is not None for holder in holders)


def _runs(module: ModuleUses, node: ast.AST, around: ast.AST, reader: ConditionReader) -> bool | None:
    """Whether the releases of a reader come to a statement where they come to what is around it; None if not known."""
    guards = _Guards(module, (reader.releases,), reader=reader)
    guard = guards.of(node)
    if guard is not None:
        reader.read = reader.read or guard.package or None
        return False if guard.is_settled else None
    holders = itertools.takewhile(lambda holder: holder is not around, module.above(node))
    is_certain = all(isinstance(holder, ast.If) and guards.decides(holder.test) for holder in holders)
    return True if is_certain else None


def _fails_before(module: ModuleUses, node: ast.AST) -> bool:
    """Whether a name comes by one import, which nothing guards, from what is gone."""
    node = root_of(node)
    if not isinstance(node, ast.Name):
        return False
    binding = module.facts.names.binding(node.id, module.scope_of(node))
    if binding is None or binding.target is None or binding.statement is None:
        return False
    known = (old_names().get(each) for each in prefixes(binding.target))
    is_gone = any(name is not None and name.is_gone for name in known) or private_name(binding.target) is not None
    is_import = isinstance(binding.statement, ast.Import | ast.ImportFrom)
    return is_gone and is_import and _Guards(module, today()).of(binding.statement) is None


@dataclass(frozen=True)
class _Answer:
    """What a condition says of some releases.

    Attributes:
        holds: Whether it holds; None if that is not known.
        asked: The package whose releases decide; None if it asks for none.
        is_text: Whether it compares versions as text, by which 0.12 comes before 0.4.
    """

    holds: bool | None
    asked: str | None = None
    is_text: bool = False


def _answer(module: ModuleUses, test: ast.expr, releases: Sequence[Releases]) -> _Answer:
    """What a condition says of releases, of all of them alike."""
    assert module.project is not None
    readers = [ConditionReader(each, values_of(module.project), _runs) for each in releases]
    found = {reader.truth(module, test) for reader in readers}
    if len(found) == 1 and None not in found:
        return _Answer(found.pop(), readers[0].read, any(each.is_text for each in readers))
    asked = next((each.asked for each in readers if each.asked is not None), None)
    if asked is None and None not in found and readers[0].read != PYTHON:
        # It is by the releases that the answers differ.
        asked = readers[0].read
    return _Answer(None, asked)


@dataclass(frozen=True)
class _Guards:
    """The guards of one module, as some releases take its branches. A reader that is given knows what it follows."""

    module: ModuleUses
    releases: Sequence[Releases]
    change: tuple[str, str] | None = None
    reader: ConditionReader | None = None

    def of(self, node: ast.AST) -> Guard | None:
        """The innermost guard around a node."""
        if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del) and isinstance(node, ast.Attribute):
            # A name that the program makes up for, for want of it.
            holders = (holder for holder in self.module.above(node) if isinstance(holder, ast.If))
            asked = next(((each, found) for each in holders if (found := self._ask(each.test)).asked), None)
            if asked is not None:
                return _chooses(*asked)
        inner = node
        for holder in self.module.above(node):
            guard = self._around(holder, inner)
            if guard is not None:
                return guard
            inner = holder
        return None

    def _around(self, holder: ast.AST, inner: ast.AST) -> Guard | None:
        guard: Guard | None = None
        match holder:
            case ast.Try():
                guard = self._by_try(holder, inner)
            case ast.If() | ast.IfExp() | ast.While() if inner is not holder.test:
                body = [holder.body] if isinstance(holder, ast.IfExp) else holder.body
                guard = self._by_condition(holder, holder.test, is_taken=inner in body)
            case ast.BoolOp(op=joined, values=values):
                tests = values[: values.index(inner)] if isinstance(inner, ast.expr) else []
                found = (self._by_condition(holder, each, is_taken=isinstance(joined, ast.And)) for each in tests)
                guard = next(filter(None, found), None)
            case ast.With() if inner in holder.body:
                guard = self._by_suppress(holder, inner)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if inner in holder.body:
                guard = self._by_skipping(holder)
            case _:
                pass
        return guard or (self._by_leaving(holder, inner) if isinstance(inner, ast.stmt) else None)

    def decides(self, test: ast.expr) -> bool:
        """Whether a condition has a known answer."""
        return self._ask(test).holds is not None

    def _ask(self, test: ast.expr) -> _Answer:
        if self.reader is not None:
            holds = self.reader.truth(self.module, test)
            if self.reader.frame is not None and holds is not None:
                # What a call is given decides as well.
                return _Answer(holds, self.reader.read or "")
            return _Answer(holds, self.reader.read if holds is not None else self.reader.asked)
        return _answer(self.module, test, self.releases)

    def _by_condition(self, holder: ast.AST, test: ast.expr, *, is_taken: bool) -> Guard | None:
        found = self._ask(test)
        if found.asked is None:
            return None
        if found.is_text:
            line, told = getattr(holder, "lineno", 1), "compare `__version_info__` with a tuple"
            reason = f"the `if` of line {line} compares versions as text, by which 0.12 comes before 0.4; {told}"
            return Guard(reason, is_settled=False, runs=found.holds is is_taken)
        if found.holds is is_taken:
            if self.change is None:
                return None
            earlier = _answer(self.module, test, before(*self.change))
            return None if earlier.holds is is_taken else _chooses(holder, found)
        return _chooses(holder, found)

    def _by_leaving(self, holder: ast.AST, inner: ast.stmt) -> Guard | None:
        """An `if` above a statement that leaves their block."""
        blocks = (value for _, value in ast.iter_fields(holder) if isinstance(value, list) and inner in value)
        block = next(blocks, [inner])
        for above in block[: block.index(inner)]:
            if not isinstance(above, ast.If):
                continue
            for branch, is_taken in ((above.body, True), (above.orelse, False)):
                if branch and self._leaves(branch[-1]):
                    found = self._ask(above.test)
                    if found.asked is not None and found.holds is is_taken:
                        return _chooses(above, found)
        return None

    def _leaves(self, statement: ast.stmt) -> bool:
        """Whether a statement leaves its block. A `raise` of a module ends the program, which fails then."""
        if isinstance(statement, ast.Raise):
            functions = (ast.FunctionDef, ast.AsyncFunctionDef)
            return any(isinstance(each, functions) for each in self.module.above(statement))
        return isinstance(statement, ast.Return | ast.Continue | ast.Break)

    def _by_try(self, holder: ast.Try, inner: ast.AST) -> Guard | None:
        is_shim = all(isinstance(part, ast.Import | ast.ImportFrom | ast.Assign | ast.Pass) for part in holder.body)
        if not is_shim or inner in holder.finalbody:
            return None
        copes = f"the `try` of line {holder.lineno} already copes with another JAX"
        if inner in holder.body:
            raised = self._raises(inner)
            handler = next((each for each in holder.handlers if _catches(each.type, raised)), None)
            return None if handler is None or isinstance(handler.body[-1], ast.Raise) else Guard(copes)
        failure = self._failure(holder.body)
        if failure is _OTHER:
            return None
        if inner in holder.orelse:
            return None if failure == "" else Guard(copes, failure is not None)
        if not isinstance(inner, ast.ExceptHandler) or not any(_catches(inner.type, kind) for kind in _CAUGHT):
            return None
        taken = next((each for each in holder.handlers if failure and _catches(each.type, failure)), None)
        return None if taken is inner else Guard(copes, failure is not None)

    def _by_skipping(self, holder: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Guard | None:
        """The decorator of a test that is not run."""
        for each in holder.decorator_list:
            skips = _SKIPS.get(self.module.full_name(each.func) or "") if isinstance(each, ast.Call) else None
            if isinstance(each, ast.Call) and skips is not None and each.args:
                found = self._ask(each.args[0])
                if found.asked is not None and found.holds is not (not skips):
                    return _chooses(each, found)
        return None

    def _by_suppress(self, holder: ast.With, inner: ast.AST) -> Guard | None:
        calls = (item.context_expr for item in holder.items if isinstance(item.context_expr, ast.Call))
        for call in calls:
            if self.module.full_name(call.func) == "contextlib.suppress":
                raised = self._raises(inner)
                if any(_catches(each, raised) for each in call.args):
                    return Guard(f"the `with` of line {holder.lineno} already copes with another JAX")
        return None

    def _raises(self, statement: ast.AST) -> str:
        """What a statement raises if a name is gone that it needs."""
        found = self._raised(statement)
        if found in _CAUGHT:
            return found
        return "ImportError" if isinstance(statement, ast.Import | ast.ImportFrom) else "AttributeError"

    def _failure(self, body: Sequence[ast.stmt]) -> str | None:
        """What the body of a `try` raises for want of a name of the packages, "" if nothing; None if it is not known.

        `_OTHER` if something else may make it fail as well, or nothing that is asked of the packages.
        """
        found = [self._raised(statement) for statement in body]
        raised = next((each for each in found if each in _CAUGHT), None)
        if raised is not None:
            return raised
        if _OTHER in found or not any(needed for statement in body for needed in self._needed(statement)):
            return _OTHER
        return None if None in found else ""

    def _raised(self, statement: ast.AST) -> str | None:
        """What a statement raises for want of a name of the packages, as `_failure` says it of several."""
        found: str | None = ""
        for name, raised in self._needed(statement):
            if not name:
                return _OTHER
            there = {each.has(name) for each in self.releases}
            if there == {False}:
                return raised
            found = found if there == {True} else None
        return found

    def _needed(self, statement: ast.AST) -> Iterator[tuple[str, str]]:
        """The names of the packages that a statement needs, each with what it raises; "" for what others have."""
        match statement:
            case ast.Import(names=names):
                for alias in names:
                    yield _of_packages(alias.name), "ModuleNotFoundError"
            case ast.ImportFrom(names=names):
                home = self.module.facts.names.home_of(statement) or ""
                yield _of_packages(home), "ModuleNotFoundError"
                for alias in names if _of_packages(home) and names[0].name != "*" else ():
                    yield f"{home}.{alias.name}", "ImportError"
            case ast.Assign(value=value):
                chains = (each for each in ast.walk(value) if isinstance(each, ast.Attribute))
                for chain in chains:
                    if name := _of_packages(self.module.full_name(chain) or ""):
                        yield name, "AttributeError"
            case _:
                pass


_OTHER = "other"


def _of_packages(name: str) -> str:
    """The name, if it is one of the packages; else ""."""
    return name if name.partition(".")[0] in ROOTS else ""


def _catches(kind: ast.expr | None, raised: str) -> bool:
    """Whether the `except` of some kinds catches what is raised."""
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(each is None or (isinstance(each, ast.Name) and each.id in _CAUGHT[raised]) for each in kinds)


def _chooses(holder: ast.AST, found: _Answer) -> Guard:
    """The guard of a condition."""
    what = {ast.If: "`if`", ast.IfExp: "`if`", ast.While: "`while`"}.get(type(holder), "condition")
    title = {**TITLES, PYTHON: "Python"}[found.asked or PYTHON]
    reason = f"the {what} of line {getattr(holder, 'lineno', 1)} already chooses by the version of {title}"
    return Guard(reason, found.holds is not None, PYTHON if found.asked is None else found.asked)
