"""Functions that make modules and call none of them: an initialiser that `nnx.jit` compiles, for example."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from mmrewrite.analysis.steps.plain_steps import PlainStep
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.reach import Reached, VisibleReach
from mmrewrite.source.names import Scope, dotted_name
from mmrewrite.values.flow import values_of

# What making an object of a class runs; `setup` of Flax linen waits until the module is applied.
_MAKING = frozenset(("__new__", "__init__", "__post_init__", "__check_init__"))
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

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _WhatMakingRuns(VisibleReach):
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
    reached = list(step.reached(_WhatMakingRuns(project)))
    if not any(isinstance(item.node, ast.ClassDef) for item in reached):
        return False
    placed = set(tasks)
    for item in reached:
        run = set(_run_nodes(item.node))
        made = set() if isinstance(item.node, ast.ClassDef) else set(_made(project, item.facts, run))
        for statement, scope in item.facts.names.scopes.items():
            # A lambda is a part of its statement, of which other parts run elsewhere.
            if statement not in run and not (item.node is step.argument and statement is step.statement):
                continue
            if (item.facts, statement) in placed:
                return False
            if isinstance(item.node, ast.ClassDef):
                continue
            calls = item.facts.names.calls.get(statement, ())
            if any(call in run and _may_call(project, item.facts, call, scope, made) for call in calls):
                return False
    return True


def _run_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a definition; of a class without the methods that making an object of it does not run."""
    if not isinstance(node, ast.ClassDef):
        yield from ast.walk(node)
        return
    methods = {each.name: each for each in node.body if isinstance(each, _Function)}
    yield node
    run = [each for each in ast.iter_child_nodes(node) if not isinstance(each, _Function) or each.name in _MAKING]
    seen = set(map(id, run))
    while run:
        for each in ast.walk(run.pop()):
            yield each
            method = methods.get(each.attr) if isinstance(each, ast.Attribute) else None
            if method is not None and id(method) not in seen:
                seen.add(id(method))
                run.append(method)


def _made(project: Project, facts: Facts, nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that hold what a class or function of the project gives, which may be a module."""
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            if _has_module(project, facts, node.value, facts.names.scopes[node], set()):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
        elif isinstance(node, ast.NamedExpr):
            yield node.target.id


def _may_call(project: Project, facts: Facts, call: ast.Call, scope: Scope, made: set[str]) -> bool:
    """Whether a call may run a module: it is one of an object, or hands one to a function that may."""
    function = call.func
    if isinstance(function, ast.Attribute) and _is_of_instance(project, facts, function):
        return True
    if isinstance(function, ast.Call):
        # `jax.vmap(attend)(q, k)`
        arguments = [*function.args, *(keyword.value for keyword in function.keywords)]
        return _has_module(project, facts, function, scope, made) or any(
            _may_be_object(project, facts, argument, scope, made) for argument in arguments
        )
    if isinstance(function, ast.Attribute) and dotted_name(function) is None:
        # A method, of an array as in `jnp.zeros(3).astype(int)`.
        return _has_module(project, facts, function.value, scope, made)
    if not isinstance(function, ast.Attribute) and _may_be_object(project, facts, function, scope, made):
        return True
    dotted = dotted_name(function) or ""
    if dotted.partition(".")[0] in made:
        return True
    full = facts.names.resolve_dotted(dotted, scope) or ""
    if full in _READING or full.rpartition(".")[0] in _READING_MODULES:
        return False
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    return "class" not in _kinds(project, facts, function, scope) and any(
        _has_module(project, facts, argument, scope, made) for argument in arguments
    )


def _is_of_instance(project: Project, facts: Facts, method: ast.Attribute) -> bool:
    """Whether a method may be one of an object that a class of the project makes: `model.apply`."""
    flow = values_of(project)
    found = flow.may(flow.value_in(facts, method.value), lambda value: value.is_made or None)
    # What is not seen may be an optimizer, too, which has no `apply`.
    return bool(found.answers or (method.attr == "apply" and found.unknown))


def _may_be_object(project: Project, facts: Facts, node: ast.expr, scope: Scope, made: set[str]) -> bool:
    """Whether what is called may be a module: neither a definition nor what a library gives for no module."""
    if not isinstance(node, ast.Name):
        return dotted_name(node) is None and not isinstance(node, ast.Constant | ast.Lambda)
    owner = scope.owner(node.id)
    for binding in owner.bindings[node.id] if owner is not None else ():
        if binding.kind in ("function", "class", "import"):
            continue
        value = binding.value
        if not isinstance(value, ast.Call) or _has_module(project, facts, value, scope, made):
            return True
        if facts.names.resolve(value.func, facts.scope_of(binding.statement) if binding.statement else scope) is None:
            return True
    return node.id in made


def _has_module(project: Project, facts: Facts, node: ast.expr, scope: Scope, made: set[str]) -> bool:
    """Whether an expression names what may be a module, or makes one, by a call of something of the project."""
    return any(
        (isinstance(each, ast.Name) and each.id in made)
        or (isinstance(each, ast.Call) and bool(_kinds(project, facts, each.func, scope) & {"class", "function"}))
        for each in ast.walk(node)
    )


def _kinds(project: Project, facts: Facts, node: ast.expr, scope: Scope) -> set[str]:
    """As what the project defines what an expression names: a class, a function, a variable; empty if it does not."""
    dotted = dotted_name(node)
    if dotted is None:
        return set()
    owner = scope.owner(dotted)
    found = {binding.kind for binding in owner.bindings[dotted]} - {"import"} if owner is not None else set()
    known = project.definition(facts.names.resolve_dotted(dotted, scope) or "", facts) if not found else None
    return {known[1].kind} - {"import"} if known is not None else found
