"""A function as it runs: what its parameters are, what it can see of those around it, and the nodes of its body."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mmrewrite.project.facts import Facts
from mmrewrite.source.functions import returns_of
from mmrewrite.source.names import Scope

# What they call runs on the host, when the step runs, and is not traced.
HOST_CALLS = frozenset(
    (
        "jax.debug.callback", "jax.experimental.host_callback.call", "jax.experimental.host_callback.id_tap",
        "jax.experimental.io_callback", "jax.pure_callback",
    )
)  # fmt: skip
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Outlasting:
    """What an expression is a part of, if that lasts longer than the function that is followed.

    `is_object` is false of modules and what libraries have, whose functions are no methods; `values` are what the name
    stands for, where that can be seen. `read_on` is a line that reads an argument once the function has run, and `line`
    the one that assigns a name.
    """

    text: str
    is_object: bool = True
    values: tuple[tuple[Facts, ast.expr], ...] = ()
    owner: Scope | None = None
    read_on: int | None = None
    line: int | None = None


@dataclass(frozen=True)
class Holder:
    """An expression that makes something new with something in it that lasts longer: `[seen]`, `Log(seen)`."""

    node: ast.expr
    frame: RunningFunction


@dataclass(frozen=True, eq=False)
class RunningFunction:
    """A function that runs, what its parameters are, and the scopes around it whose functions run too.

    `holders` are parameters that are new themselves.
    """

    facts: Facts
    scope: Scope
    given: Mapping[tuple[Scope, str], Outlasting | None]
    active: frozenset[Scope]
    holders: Mapping[tuple[Scope, str], Holder] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """How many functions, one given what another made, the holders come through."""
        return max((1 + each.frame.depth for each in self.holders.values()), default=0)

    def is_own(self, scope: Scope) -> bool:
        """Whether the names of a scope end with the function that is followed."""
        inner: Scope | None = scope
        while inner is not None:
            if inner in self.active:
                return True
            inner = inner.parent
        return False


@dataclass(frozen=True)
class Callee:
    """A function that may be called, with what is known of its parameters.

    The first `positional` ones have their arguments; `around` is the function that has made it, if that runs too, and
    `kept` what the parameters of that one were. `holders` are those that are new and have something in them.
    """

    facts: Facts
    node: Definition
    given: tuple[tuple[str, Outlasting | None], ...] = ()
    positional: int = 0
    around: Scope | None = None
    kept: tuple[tuple[tuple[Scope, str], Outlasting | None], ...] = ()
    holders: tuple[tuple[str, Holder], ...] = ()


def run_nodes(facts: Facts, body: Sequence[ast.AST], scope: Scope) -> Iterator[ast.AST]:
    """The nodes that run with a body, in order, without those that a host callback runs."""
    stack: list[ast.AST] = list(reversed(body))
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            stack.extend([*node.decorator_list, *node.args.defaults])
            continue
        if isinstance(node, ast.ClassDef):
            continue
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call) and facts.names.resolve(node.func, scope) in HOST_CALLS:
            children = [child for child in children if child is not (node.args[0] if node.args else None)]
            children = [child for child in children if not (isinstance(child, ast.keyword) and child.arg == "callback")]
        stack.extend(reversed(children))


def positional_names(node: Definition) -> list[str]:
    """The parameters that arguments by position go to."""
    return [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]


def defaults_of(node: Definition) -> Iterator[tuple[str, ast.expr]]:
    """The parameters with defaults, and these."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    if arguments.defaults:
        for argument, default in zip(positional[-len(arguments.defaults) :], arguments.defaults, strict=True):
            yield argument.arg, default
    for argument, each in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if each is not None:
            yield argument.arg, each


def results_of(node: Definition) -> list[ast.expr]:
    """What a function may return."""
    if isinstance(node, ast.Lambda):
        return [node.body]
    return [each.value for each in returns_of(node) if each.value is not None]
