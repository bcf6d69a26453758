"""Keep tests for tuples true of a `PartitionSpec`, which was a tuple in older JAX and is none today.

    if isinstance(spec, tuple):
    sharding = NamedSharding(mesh, ())
    ->  if isinstance(spec, (tuple, PartitionSpec)):
    ->  sharding = NamedSharding(mesh, PartitionSpec())

A `NamedSharding` took `None` and `()` for an empty spec before JAX 0.6, and raises for them today.

Tests are extended in modules that use `PartitionSpec`, if the project uses names that were gone before specs changed,
such as `jax.experimental.maps` and `pjit`: newer code means what the test says today, so in newer code tests and
comparisons of what is seen to be a spec are reported.

To check: the test means a spec where it said tuple.

Refused: comparisons with a tuple of axis names, such as `spec == ("data", None)`, which are false of every spec today.
In any project: the order of specs (`<`), and `spec * 2`, which raise.
See https://docs.jax.dev/en/latest/jax.sharding.html for the class.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.arguments import append_element
from mmmodernize.meshes.partition_specs import SPECS
from mmmodernize.modules.project_names import ProjectAge
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.branches import branches
from mmrewrite.values.library import is_followed
from mmrewrite.values.value import Value

_CHANGED = ("jax", "0.6.1")
_NO_SPEC = re.compile(rb",\s*(?:spec\s*=\s*)?(?:None|\(\s*\))\s*[,)]")
_NAMED = frozenset(("jax.NamedSharding", "jax.sharding.NamedSharding"))
_MADE = frozenset(f"{name}()" for name in SPECS)
# What these make is no spec: `tuple(spec)`, `text.split()`.
_BUILT = "builtins."
# https://docs.python.org/3/library/unittest.html#unittest.TestCase.assertEqual
_ASSERTED = frozenset(("assertEqual", "assertNotEqual", "assertSequenceEqual", "assertTupleEqual"))
# Attributes that hold names of axes, sizes or types, but no spec.
_OTHERS = frozenset(("axes", "axis_names", "dims", "names", "shape", "shape_tuple"))


class KeepSpecTuples(ModernizeCodemod):
    """Adds the class to `isinstance` tests for tuples, and reports comparisons."""

    changed_in: ClassVar = {"": (*_CHANGED, "changes")}

    @classmethod
    def may_be_in(cls, data: bytes) -> bool:
        """Tests are in files with other sites alone."""
        return b"NamedSharding" in data and _NO_SPEC.search(data) is not None

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Shardings without a spec; tests and comparisons in modules with specs, in a project for an older JAX."""
        for use in module.uses(_NAMED):
            spec = _empty_spec(module.parents.get(use.node))
            if spec is not None:
                yield Location(module, spec)
        values, is_old = _ComparedSpecs(module, context), _is_old(module, context)
        # A spec may come from another file.
        has_specs = module.uses_any(SPECS)
        for node in module.nodes_of(ast.BinOp, ast.Call, ast.Compare):
            if has_specs and (values.are_ordered(node) or (_is_test(module, node) and (is_old or values.tests(node)))):
                yield Location(module, node)
            pairs = [pair for pair in _compared(node) if values.may_equal(*pair, has_specs and is_old)]
            if pairs and (is_old or values.compares(node)):
                yield Location(module, node)

    def rewrite(self) -> None:
        """Extend the classes of a test."""
        site, node = self.site, self.site.node
        if isinstance(node, ast.Constant | ast.Tuple):
            site.replace(node, f"{site.spell('jax.sharding.PartitionSpec')}()")
            return
        if _ComparedSpecs(site.module, site.context).are_ordered(node):
            self.refuse("a `PartitionSpec` is no tuple today and has no such operation; use `tuple(spec)`")
        if not _is_test(site.module, node):
            self.refuse(
                "a `PartitionSpec` was a tuple in older JAX and equals none today; if this may be one, compare it with "
                "a `PartitionSpec`, or compare `tuple(spec)`"
            )
        if not _is_old(site.module, site.context):
            site.leave("since JAX 0.6.1 a `PartitionSpec` is no tuple; add it to the classes if this is to be true")
        assert isinstance(node, ast.Call)
        classes, spec = node.args[1], site.spell("jax.sharding.PartitionSpec")
        if isinstance(classes, ast.Tuple):
            append_element(site, classes, spec)
        else:
            site.replace(classes, f"(tuple, {spec})")


def _is_old(module: ModuleUses, context: ModernizeContext) -> bool:
    return context.analysis(ProjectAge).is_before(*_CHANGED, module)


def _empty_spec(call: ast.AST | None) -> ast.expr | None:
    """The `None` or `()` that a `NamedSharding` is given for a spec."""
    if not isinstance(call, ast.Call):
        return None
    given = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "spec")]
    match given[:1]:
        case [ast.Constant(value=None) as spec] | [ast.Tuple(elts=[]) as spec]:
            return spec
        case _:
            return None


def _is_test(module: ModuleUses, node: ast.AST) -> bool:
    """Whether a node is `isinstance(value, tuple)`, alone or with other classes that are not the class of specs."""
    if not isinstance(node, ast.Call) or len(node.args) != 2 or node.keywords:
        return False
    names, scope = module.facts.names, module.scope_of(node)
    if names.resolve(node.func, scope) != "builtins.isinstance":
        return False
    classes = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
    found = {names.resolve(each, scope) for each in classes}
    return "builtins.tuple" in found and not found & SPECS


def _compared(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The pairs of values whose equality a node asks: by an operator, by `in`, or as `assertEqual` of a test does."""
    match node:
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
            yield left, right
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[right]):
            # `spec in (("a", "b"), ("c",))` compares with each of them, and `name in ("a", "b")` with strings.
            held = right.elts if isinstance(right, ast.Tuple | ast.List | ast.Set) else []
            if held and all(isinstance(part, ast.Tuple) and _is_of_names(part) for part in held):
                yield left, held[0]
        case ast.Call(func=ast.Attribute(attr=attribute), args=[left, right, *_]) if attribute in _ASSERTED:
            yield left, right
        case _:
            pass


def _is_of_names(node: ast.expr) -> bool:
    """Whether an expression is a tuple of names of axes, `None`, and tuples of these."""
    return isinstance(node, ast.Tuple) and all(
        part.value is None or isinstance(part.value, str) if isinstance(part, ast.Constant) else _is_of_names(part)
        for part in node.elts
    )


class _ComparedSpecs:
    """What values of a module are specs."""

    def __init__(self, module: ModuleUses, context: ModernizeContext) -> None:
        self._module, self._flow = module, context.flow

    def are_ordered(self, node: ast.AST) -> bool:
        """Whether a node orders or repeats what is a spec for certain."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return self._is_any(node.left, node.right)
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            return self._is_any(node.left, *node.comparators)
        return False

    def tests(self, call: ast.AST) -> bool:
        """Whether a test is about what is a spec for certain."""
        return isinstance(call, ast.Call) and self._is_any(call.args[0])

    def compares(self, node: ast.AST) -> bool:
        """Whether a comparison is one of what is a spec for certain."""
        return any(self._is_any(*pair) for pair in _compared(node))

    def may_equal(self, left: ast.expr, right: ast.expr, guess: bool) -> bool:
        """Whether a tuple of names of axes is compared with what may be a spec; with `guess`, by its form alone."""
        pairs = ((left, right), (right, left))
        return any(_is_of_names(one) and self._may_be_one(other, one, guess) for one, other in pairs)

    def _is_any(self, *nodes: ast.expr) -> bool:
        asked = (node for node in nodes if self._is_open(node))
        return any(self._flow.must(Value(self._module, node), _is_made) for node in asked)

    def _is_open(self, node: ast.expr) -> bool:
        """Whether a look at an expression leaves open that it certainly is a spec: most that is multiplied is none."""
        module = self._module
        match node:
            case ast.Call():
                name = self._flow.full_name(module, node.func)
                if name is None or name in SPECS or is_followed(name):
                    return True
                return self._flow.project.holds(name, module.facts)
            case ast.Name():
                owner = module.scope_of(node).owner(node.id)
                return owner is None or not any(
                    isinstance(each.value, ast.Constant | ast.BinOp) or _is_handed_on(module, each.node)
                    for each in owner.bindings[node.id]
                )
            case ast.Attribute() | ast.Subscript():
                return True
            case _:
                sides = [*branches(node)]
                return sides != [node] and all(map(self._is_open, sides))

    def _may_be_one(self, node: ast.expr, names: ast.expr, guess: bool) -> bool:
        if isinstance(node, ast.Attribute) and node.attr in _OTHERS:
            return False
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            # A part of a spec is a tuple, then and now.
            return False
        if not isinstance(node, ast.Call | ast.Name | ast.Attribute | ast.Subscript):
            return False
        found = self._flow.may(Value(self._module, node), _is_made)
        if found.answers:
            return True
        if found.others and not found.unknown and all((each.outside or "").startswith(_BUILT) for each in found.others):
            return False
        # The empty tuple is compared with many things.
        is_empty = isinstance(names, ast.Tuple) and not names.elts
        return guess and not isinstance(node, ast.Call) and (not is_empty or "spec" in ast.unparse(node).lower())


def _is_handed_on(module: ModuleUses, parameter: ast.AST) -> bool:
    """Whether a parameter is one of a function that is a value somewhere, so that others may call it."""
    function = module.parents.get(module.parents[parameter]) if isinstance(parameter, ast.arg) else None
    if isinstance(function, ast.Lambda):
        return isinstance(module.parents[function], ast.Call | ast.keyword)
    heads = module.heads.get(function.name, ()) if isinstance(function, ast.FunctionDef) else ()
    return any(getattr(module.parents[head], "func", None) is not head for head in heads)


def _is_made(value: Value) -> bool | None:
    return value.outside in _MADE or None
