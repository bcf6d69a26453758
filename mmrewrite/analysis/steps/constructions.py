"""Functions that make modules and call none of them: an initialiser that `nnx.jit` compiles, for example."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from mmrewrite.analysis.steps.plain_steps import PlainStep
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.reach import Reach, Reached, VisibleReach
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.arguments import given
from mmrewrite.values.callees import Callees, callees
from mmrewrite.values.flow import ValueFlow, values_of
from mmrewrite.values.operators import special_methods
from mmrewrite.values.value import By, CallArguments, Function, Value

# What making an object of a class runs; `setup` of Flax linen waits until the module is applied.
_MAKING = frozenset(("__new__", "__init__", "__post_init__", "__check_init__"))
_IDENTITY = (ast.Is, ast.IsNot)
# The special methods that operators and statements run.
_SPECIAL = re.compile("__(?!call__).*__")
# Functions that read the arrays of a module, or change them, and do not call it; of `tree` and `tree_util` all.
_READING = frozenset(
    (
        *(f"flax.nnx.{name}" for name in ("split", "state", "graphdef", "update", "merge", "clone", "variables")),
        *(f"flax.nnx.{name}" for name in ("Optimizer", "ModelAndOptimizer", "to_pure_dict", "replace_by_pure_dict")),
        *(f"equinox.{name}" for name in ("filter", "partition", "combine", "is_array", "is_inexact_array")),
        *(f"equinox.{name}" for name in ("tree_at", "filter_shard", "tree_inference")),
        *("jax.lax.with_sharding_constraint", "jax.device_put", "jax.block_until_ready"),
        *("builtins.print", "builtins.isinstance", "builtins.len", "builtins.type"),
    )
)
_READING_MODULES = frozenset(("jax.tree", "jax.tree_util"))


class _WhatMakingRuns(Reach):
    """Of a class, what making an object of it runs: the bodies of its other methods are not followed."""

    def _walk(self, reached: Reached) -> Iterable[ast.AST]:
        return _run_nodes(reached.node)


def only_makes_modules(project: Project, step: PlainStep, tasks: Iterable[tuple[Facts, ast.stmt]]) -> bool:
    """Whether what a step runs makes objects of classes with tasks in their methods, calls none, and has no task.

    A call of something that is not in sight counts as a call of an object.

    Args:
        project: The project.
        step: What plain `jax.jit` compiles.
        tasks: The statements with tasks, and their modules.
    """
    if step.argument is not None and not isinstance(step.argument, ast.Lambda):
        return False
    reach = VisibleReach(project, _WhatMakingRuns(project))
    reached = list(step.reached(reach))
    if not any(isinstance(item.node, ast.ClassDef) for item in reached):
        return False
    placed, flow = set(tasks), values_of(project)
    seen = {item.node for item in reached}
    for item in reached:
        run, module = set(_run_nodes(item.node)), flow.uses_of(item.facts)
        for operand in (each for node in run for each in _operands(node) if not isinstance(item.node, ast.ClassDef)):
            for facts, method in _special_methods(flow, flow.at(module, operand)):
                reached += reach.from_node(facts, method, seen)
        for statement in item.facts.names.scopes:
            # A lambda is a part of its statement, of which other parts run elsewhere.
            if statement not in run and not (item.node is step.argument and statement is step.statement):
                continue
            if (item.facts, statement) in placed:
                return False
            calls = item.facts.names.calls.get(statement, ()) if not isinstance(item.node, ast.ClassDef) else ()
            for call in calls:
                if call not in run:
                    continue
                found = callees(flow, flow.at(module, call))
                if _may_call(flow, module, call, found):
                    return False
                # What a method gives, such as `__getitem__`, is called here, too.
                for each in found.definitions:
                    if isinstance(each.head, Function | ast.Lambda) and each.head not in seen:
                        reached += reach.from_node(each.module.facts, each.head, seen)
    return True


def _run_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a definition; of a class without the methods that making an object of it does not run."""
    if not isinstance(node, ast.ClassDef):
        yield from ast.walk(node)
        return
    methods = {each.name: each for each in node.body if isinstance(each, Function)}
    yield node
    run = [each for each in ast.iter_child_nodes(node) if not isinstance(each, Function) or each.name in _MAKING]
    seen = set(map(id, run))
    while run:
        for each in ast.walk(run.pop()):
            yield each
            method = methods.get(each.attr) if isinstance(each, ast.Attribute) else None
            if method is not None and id(method) not in seen:
                seen.add(id(method))
                run.append(method)


def _may_call(flow: ValueFlow, module: ModuleUses, call: ast.Call, found: Callees) -> bool:
    """Whether a call may run a module: it is one of an object, or hands one to a function that may."""
    method = call.func if isinstance(call.func, ast.Attribute) else None
    if method is not None:
        owner = flow.may(flow.at(module, method.value), _is_made)
        # What is not seen may be an optimizer, too, which has no `apply`.
        if owner.answers or (method.attr == "apply" and owner.unknown):
            return True
    arguments = flow.call_at(module, call, None)
    if found.unknown and (method is None or _is_given_module(flow, arguments)):
        return True
    # A function that may have taken an object with it is called, or one of a class that is given an object.
    around = [*module.above(call)]
    if any(_is_made_inside(each, around) or _is_in_class(flow, each, arguments) for each in found.definitions):
        return True
    for each in found.outside:
        calls = [step.what for step in each.path if step.kind is By.CALL]
        reads = each.head in _READING or f"{each.head}".rpartition(".")[0] in _READING_MODULES
        if not reads and any(_is_given_module(flow, given, is_called=given is not calls[-1]) for given in calls):
            return True
    return False


def _operands(node: ast.AST) -> tuple[ast.expr, ...]:
    """The expressions whose special methods an operator, an index, a loop, a `with` or an unpacking may run.

    What must give Python a truth value, a length or a text cannot compute it of arrays, and runs no task.
    """
    match node:
        case ast.Compare(ops=ops) if all(isinstance(each, _IDENTITY) for each in ops):
            return ()
        case ast.BinOp() | ast.AugAssign() | ast.Compare() | ast.UnaryOp() | ast.Subscript():
            return tuple(value for value, _ in special_methods(node))
        case ast.withitem(context_expr=value):
            return (value,)
        case ast.For(iter=value) | ast.comprehension(iter=value) | ast.Starred(value=value, ctx=ast.Load()):
            return (value,)
        case ast.Assign(targets=targets, value=value) if any(
            isinstance(each, ast.Tuple | ast.List) for each in targets
        ):
            return (value,)
        case _:
            return ()


def _special_methods(flow: ValueFlow, value: Value) -> Iterator[tuple[Facts, Function]]:
    """The special methods of the classes that a value may be an object of, without those that make and call it."""
    for found in flow.may(value, _is_made).answers.values():
        if isinstance(found.head, ast.ClassDef):
            for module, definition in flow.bases(found.module, found.head).classes:
                for each in definition.body:
                    if isinstance(each, Function) and each.name not in _MAKING and re.fullmatch(_SPECIAL, each.name):
                        yield module.facts, each


def _is_made(value: Value) -> bool | None:
    return value.is_made or None


def _is_made_inside(value: Value, around: Sequence[ast.AST]) -> bool:
    """Whether a function is made by another one than those around its call."""
    if len(value.path) > 1:
        return True
    assert isinstance(value.head, ast.AST)
    holders = (each for each in value.module.above(value.head) if isinstance(each, Function | ast.Lambda))
    return any(each not in around for each in holders)


def _is_in_class(flow: ValueFlow, value: Value, arguments: CallArguments) -> bool:
    """Whether a function is a method that is given its object, or another one in a class that is given a module."""
    if not isinstance(value.head, Function) or not isinstance(value.module.parents[value.head], ast.ClassDef):
        return False
    marks = {flow.full_name(value.module, each) for each in value.head.decorator_list}
    is_method = marks.isdisjoint(("builtins.staticmethod", "builtins.classmethod"))
    return is_method or _is_given_module(flow, arguments)


def _is_given_module(flow: ValueFlow, call: CallArguments, *, is_called: bool = False) -> bool:
    """Whether arguments have a module in them, or may have where what takes them is called, as of `jax.vmap(f)`."""
    for value in given(call):
        found = flow.may(value, _is_made)
        if found.answers or (is_called and any(not each.is_open for each in found.unknown)):
            return True
        parts = ast.walk(value.head) if isinstance(value.head, ast.expr) else ()
        names = (each for each in parts if isinstance(each, ast.Name | ast.Call) and each is not value.head)
        if any(flow.may(value._replace(head=each, path=()), _is_made).answers for each in names):
            return True
    return False
