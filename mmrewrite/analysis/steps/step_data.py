"""Arguments of a step that are no data: its settings, and what belongs with the parameters that are differentiated."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable, Iterator, Sequence

from mmrewrite.codemod.site import Site
from mmrewrite.directives.arguments import whole_number
from mmrewrite.project.facts import Facts
from mmrewrite.source.calls import CallForm, call_form
from mmrewrite.source.functions import with_defaults
from mmrewrite.source.jit_kinds import JIT_KINDS
from mmrewrite.source.names import Scope, all_arguments
from mmrewrite.source.walk import walk
from mmrewrite.values.flow import ValueFlow, values_of
from mmrewrite.values.value import By, Own, Value

_NUMPYS = frozenset(("jax.numpy", "numpy"))
# Functions of NumPy that compute each entry of their result from one entry of each operand.
_ENTRY_BY_ENTRY = frozenset(
    (
        "abs", "array", "asarray", "clip", "equal", "exp", "float32", "greater", "greater_equal", "int32", "isfinite",
        "isnan", "less", "less_equal", "log", "logical_and", "logical_not", "logical_or", "maximum", "minimum",
        "nan_to_num", "not_equal", "ones_like", "where", "zeros_like",
    )
)  # fmt: skip
# How many operations an operand may be the result of.
_DEEPEST = 4
_PLAIN_TYPES = frozenset(("bool", "int", "float", "str", "Callable"))

Function = ast.FunctionDef | ast.AsyncFunctionDef


class StepData:
    """What the local names of a step are made of.

    Args:
        site: The site of a hint in the step.
        call: The call of the gradient function. What it returns holds no examples, though it is made of them: neither
            does a state that is updated with it.
        differentiated: The arguments of the call that are differentiated.
    """

    def __init__(self, site: Site, call: ast.Call, differentiated: Iterable[ast.expr]) -> None:
        self._site, self._function, self._call = site, site.function(), call
        self._settings = frozenset(_settings(site, self._function)) if self._function is not None else frozenset()
        self._state = frozenset(root for node in differentiated for root in self._roots(node))

    def may_be_batch(self, node: ast.expr) -> bool:
        """Whether an expression may hold examples: not if made of settings and of what parameters are in alone."""
        roots = set(self._roots(node))
        return not roots or not roots <= self._state | self._settings

    def _roots(self, node: ast.expr) -> Iterator[str]:
        """The parameters of the step that an expression is made of."""
        if self._function is None:
            return
        scope = self._site.facts.names.inner[self._function]
        parameters = {argument.arg for argument in all_arguments(self._function.args)}
        seen: set[str] = set()
        queue = [node]
        while queue:
            for name in self._names(queue.pop(), scope):
                if name in seen:
                    continue
                seen.add(name)
                if name in parameters:
                    yield name
                for binding in scope.bindings.get(name, ()):
                    queue += _sources(binding.statement)

    def _names(self, node: ast.AST, scope: Scope) -> Iterator[str]:
        """The names in an expression, without those in the call of the gradient function."""
        if isinstance(node, ast.Name) and node.id in scope.bindings:
            yield node.id
        if node is not self._call:
            for child in ast.iter_child_nodes(node):
                yield from self._names(child, scope)


def are_of_one_batch(site: Site, facts: Facts, nodes: Sequence[ast.expr], others: Sequence[ast.expr]) -> bool:
    """Whether expressions of a module have parts of one container, or the same rows of arrays.

    Of the container `others`, which stand at the site, have no part. What is computed of such parts alone, and entry by
    entry, has their rows.
    """
    flow = values_of(site.project)
    found = [_wholes_in(flow, facts, node, _DEEPEST) for node in nodes]
    beside = {whole for node in others for whole in _wholes_in(flow, site.facts, node, _DEEPEST)}
    shared = set(found[0]).intersection(*found[1:]) - beside
    # One of them may be the container itself.
    return any(sum(not wholes[whole] for wholes in found) <= 1 for whole in shared)


def _wholes_in(flow: ValueFlow, facts: Facts, node: ast.expr, depth: int) -> dict[Hashable, bool]:
    """The values that an expression may have, and what these are items of, each with whether it is an item of it."""
    found: dict[Hashable, bool] = {}
    names = (part for part in ast.walk(node) if isinstance(part, ast.Name | ast.Subscript | ast.Attribute))
    queue = [flow.value_in(facts, part) for part in names]
    seen = set(queue)
    for each in queue:
        came: dict[Value, Value] = {}
        for _ in flow.walk(each, lambda value: None, came=came):
            pass
        for value in came:
            found.setdefault(value, False)
            path = value.path
            while path and path[-1].kind in (By.ITEM, By.ATTRIBUTE) and path[-1].what is not None:
                is_attribute, path = path[-1].kind is By.ATTRIBUTE, path[:-1]
                holder = value._replace(path=path)
                # A trainer is no batch.
                if is_attribute and flow.may(holder, _is_self).answers:
                    break
                found[holder] = True
            for operand in _wholes_of_operands(flow, value, depth) if not value.path and depth else ():
                found.setdefault(operand, True)
            match value.head:
                case ast.Subscript(value=whole, slice=ast.Tuple(elts=[ast.Slice(lower=None, upper=None), *_])):
                    # `tokens[:, 1:]` has the rows of `tokens`.
                    found[value.module, "rows of", ast.dump(whole), value.module.scope_of(value.head)] = True
                    other = value._replace(head=whole, path=())
                    queue += [other] if other not in seen else []
                    seen.add(other)
                case ast.Subscript(slice=rows) if not isinstance(rows, ast.Constant):
                    found[value.module, "rows", ast.dump(rows), value.module.scope_of(value.head)] = True
                case _:
                    pass
    return found


def _is_self(value: Value) -> bool | None:
    return True if isinstance(value.head, Own) and not value.path else None


def _wholes_of_operands(flow: ValueFlow, value: Value, depth: int) -> set[Hashable]:
    """What all operands of an operation on single entries are parts of."""
    head, module = value.head, value.module
    match head:
        case ast.Compare(left=left, comparators=others):
            operands = [left, *others]
        case ast.BinOp(left=left, right=right):
            operands = [left, right]
        case ast.UnaryOp(operand=operand):
            operands = [operand]
        case ast.Call(func=ast.Attribute(value=array, attr="astype")):
            operands = [array]
        case ast.Call(func=function, args=operands):
            owner, _, name = (flow.full_name(module, function) or "").rpartition(".")
            if owner not in _NUMPYS or name not in _ENTRY_BY_ENTRY:
                return set()
        case _:
            return set()
    arrays = [each for each in operands if not isinstance(each, ast.Constant)]
    wholes = [set(_wholes_in(flow, module.facts, each, depth - 1)) for each in arrays]
    return set.intersection(*wholes) if wholes else set()


def _sources(statement: ast.stmt | None) -> list[ast.expr]:
    """The expressions that a statement makes the values of its names of."""
    match statement:
        case ast.Assign(value=value) | ast.AugAssign(value=value):
            return [value]
        case ast.AnnAssign(value=ast.expr() as value):
            return [value]
        case ast.For(iter=iterated):
            return [iterated]
        case ast.With(items=items):
            return [item.context_expr for item in items]
    return []


def _settings(site: Site, function: Function) -> Iterator[str]:
    """Parameters with plain types or defaults, static ones, and those that a `partial` of the function sets."""
    positional = [*function.args.posonlyargs, *function.args.args]
    for argument, default in with_defaults(function.args):
        is_plain = isinstance(default, ast.Constant) and default.value is not None
        if is_plain or _type_name(argument.annotation) in _PLAIN_TYPES:
            yield argument.arg
    for form in _calls_about(site, function):
        keywords = {keyword.arg: keyword.value for keyword in form.keywords if keyword.arg is not None}
        if not form.is_called and site.resolve(form.function, site.facts.names.scope) not in JIT_KINDS:
            yield from keywords
            yield from (argument.arg for argument in positional[: len(form.positional)])
        for option in ("static_argnums", "static_argnames", "static_broadcasted_argnums"):
            for value in _constants(keywords.get(option)):
                if isinstance(value, str):
                    yield value
                elif isinstance(value, int) and -len(positional) <= value < len(positional):
                    yield positional[value].arg


def _calls_about(site: Site, function: Function) -> Iterator[CallForm]:
    """Calls that compile or bind the function: its decorators, and those with its name as first argument."""
    question = ("calls by the name that they are given first", site.facts.path)
    named = site.project.once(question, lambda: _calls_by_argument(site.facts.tree)).get(function.name, ())
    decorating = (each for each in function.decorator_list if isinstance(each, ast.Call))
    yield from (call_form(site.facts.names, each, site.facts.names.scope) for each in (*decorating, *named))


def _calls_by_argument(tree: ast.Module) -> dict[str, list[ast.Call]]:
    """The calls of a module whose first argument is a name, or an attribute of one, by that name."""
    found: dict[str, list[ast.Call]] = {}
    for node in walk(tree):
        match node:
            case ast.Call(args=[ast.Name(id=name) | ast.Attribute(attr=name), *_]):
                found.setdefault(name, []).append(node)
    return found


def _constants(node: ast.expr | None) -> Iterator[object]:
    for item in node.elts if isinstance(node, ast.Tuple | ast.List) else [node]:
        if isinstance(item, ast.Constant):
            yield item.value
        elif item is not None and (number := whole_number(item)) is not None:
            yield number


def _type_name(annotation: ast.expr | None) -> str:
    """The last name in an annotation, without what stands in brackets."""
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    if isinstance(annotation, ast.Attribute):
        return annotation.attr
    return annotation.id if isinstance(annotation, ast.Name) else ""
