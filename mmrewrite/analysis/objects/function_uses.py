"""Where the functions of a program are used: which are only compiled, and which calls of them can be seen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.source.functions import COMPILERS, is_jit_decorator
from mmrewrite.source.names import Scope

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, eq=False)
class FunctionUse:
    """A name or an attribute that reads a function: the call of it, or of the function that it is handed to."""

    facts: Facts
    node: ast.expr
    call: ast.Call | None

    @property
    def is_call(self) -> bool:
        """Whether the function itself is called there."""
        return self.call is not None and self.call.func is self.node


@dataclass(frozen=True, eq=False)
class _ReadsInModule:
    """The names and attributes that a module reads, by their last part, and the calls that have one as a part."""

    nodes: dict[str, list[ast.expr]]
    calls: dict[ast.expr, ast.Call]
    statements: dict[ast.expr, ast.stmt]


class FunctionUses:
    """Looks for the uses of functions in a program."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def of(self, facts: Facts, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[FunctionUse]:
        """Everything that may read a function by its name, but for what its own body reads."""
        own = set(ast.walk(function))
        uses = [use for use in self._of(facts, function) if use.node not in own]
        line = self._compiled_below(facts, function, uses)
        return [use for use in uses if line is None or (use.facts is facts and use.node.lineno <= line)]

    def _compiled_below(
        self, facts: Facts, function: ast.FunctionDef | ast.AsyncFunctionDef, uses: list[FunctionUse]
    ) -> int | None:
        """The line of `step = jax.jit(step)`, below which the name stands for another function."""
        owner = facts.names.scopes[function]
        found = [use.call for use in uses if use.facts is facts and self.compiles(use)]
        values = [each.value for each in owner.bindings[function.name] if each.node is not function]
        lines = [value.lineno for value in values if isinstance(value, ast.Call) and value in found]
        return min(lines) if lines and len(lines) == len(values) else None

    def is_compiled(self, facts: Facts, function: ast.AST) -> bool:
        """Whether a function only runs compiled, with arguments that JAX has rebuilt."""
        return self._project.once(("compiled", function), lambda: self._is_compiled(facts, function))

    def _is_compiled(self, facts: Facts, function: ast.AST) -> bool:
        if not isinstance(function, _FUNCTIONS):
            return False
        scope = facts.names.scopes[function]
        for decorator in function.decorator_list:
            if is_jit_decorator(facts.names, decorator, scope):
                return not _has_static(decorator)
        uses = self.of(facts, function)
        return bool(uses) and all(self.compiles(use) for use in uses)

    def compiles(self, use: FunctionUse) -> bool:
        """Whether a use compiles the function, without arguments that stay as they are."""
        if use.call is None or use.is_call:
            return False
        scope = use.facts.names.scopes[self.statement(use.facts, use.node)]
        made = use.call.func
        is_compiler = use.facts.names.resolve(made, scope) in COMPILERS
        return (is_compiler or is_jit_decorator(use.facts.names, made, scope)) and not (
            _has_static(use.call) or _has_static(made)
        )

    def statement(self, facts: Facts, node: ast.expr) -> ast.stmt:
        """The innermost statement that holds a name or an attribute that is read."""
        return self._reads(facts).statements[node]

    def _of(self, facts: Facts, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[FunctionUse]:
        owner = facts.names.scopes[function]
        name = function.name
        for module in self.program(facts) if owner.parent is None or owner.kind == "class" else (facts,):
            reads = self._reads(module)
            for node in reads.nodes.get(name, ()):
                if self._may_be(node, module, name, owner, facts):
                    yield FunctionUse(module, node, reads.calls.get(node))

    def _may_be(self, node: ast.expr, module: Facts, name: str, owner: Scope, facts: Facts) -> bool:
        if owner.kind == "class":
            return isinstance(node, ast.Attribute) or module.names.read_in[node].owner(name) is owner
        if isinstance(node, ast.Name) and module is facts:
            return module.names.read_in[node].owner(name) is owner
        if owner.parent is not None:
            return False
        scope = module.names.scopes[self.statement(module, node)]
        return module.names.resolve(node, scope) == f"{facts.names.name}.{name}"

    def program(self, facts: Facts) -> list[Facts]:
        """The modules that a module imports or that import it."""
        return self._project.once(("program", facts.path), lambda: self._program(facts))

    def _program(self, facts: Facts) -> list[Facts]:
        found = {each.path: each for each in self._project.connected(facts)}
        found |= {each.path: each for each in self._project.imported_by([facts]).values()}
        return list(found.values())

    def _reads(self, facts: Facts) -> _ReadsInModule:
        return self._project.once(("reads", facts.path), lambda: _find_reads(facts))


def _find_reads(facts: Facts) -> _ReadsInModule:
    found = _ReadsInModule({}, {}, {})
    stack: list[tuple[ast.AST, ast.stmt | None]] = [(each, None) for each in facts.tree.body]
    while stack:
        node, statement = stack.pop()
        statement = node if isinstance(node, ast.stmt) else statement
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load) and statement is not None:
            found.nodes.setdefault(node.id if isinstance(node, ast.Name) else node.attr, []).append(node)
            found.statements[node] = statement
        elif isinstance(node, ast.Call):
            found.calls.update(dict.fromkeys((node.func, *node.args, *(each.value for each in node.keywords)), node))
        stack.extend((child, statement) for child in ast.iter_child_nodes(node))
    return found


def _has_static(node: ast.expr) -> bool:
    """Whether a call that compiles leaves some arguments as they are, or may."""
    if not isinstance(node, ast.Call):
        return False
    names = [keyword.arg for keyword in node.keywords]
    return any(name is None or name.startswith("static") for name in names)
