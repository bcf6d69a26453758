"""Find the gradient function that a statement makes or calls, and the calls that show its arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from mmrewrite.codemod.site import Site
from mmrewrite.directives.vocabulary import STATEMENT, kind_of
from mmrewrite.source.jit_kinds import JIT
from mmrewrite.source.names import Binding, Scope
from mmrewrite.values.array_libraries import GRADIENTS
from mmrewrite.values.callees import callees
from mmrewrite.values.flow import ValueFlow, values_of
from mmrewrite.values.names import reaching
from mmrewrite.values.value import Access, By, CallArguments, Value


@dataclass(frozen=True, eq=False)
class Use:
    """A call of a gradient function, and the simple statement that holds it."""

    call: ast.Call
    statement: ast.stmt


@dataclass(frozen=True, eq=False)
class Gradient:
    """A gradient function, `jax.grad(function, ...)`, and its calls.

    Attributes:
        makers: What makes it: one, but where the hinted statement calls one of several.
        argnums: Positions of the differentiated arguments; empty where they are computed and the hint has `argnum=`.
        wrapped_call: The call to wrap: `jax.grad(...)` itself or, if `by_name`, a call of what holds it.
        by_name: Whether the hinted statement calls a gradient function that is made elsewhere.
        uses: The calls that can be seen.
        complete: Whether these are all.
    """

    makers: tuple[GradientMaker, ...]
    argnums: frozenset[int]
    wrapped_call: ast.Call
    by_name: bool
    uses: tuple[Use, ...]
    complete: bool

    @property
    def calls(self) -> list[ast.Call]:
        """The calls without their statements."""
        return [use.call for use in self.uses]

    @property
    def loss(self) -> Value:
        """The function that is differentiated."""
        return self.makers[0].loss

    @property
    def given(self) -> tuple[tuple[str, Value], ...]:
        """The keywords that a `partial` gives the gradient function."""
        return self.makers[0].given

    @property
    def function(self) -> ast.expr:
        """The expression for it, as far as one stands in the text."""
        return self.loss.expression or self.wrapped_call.func


class GradientMaker(NamedTuple):
    """What makes a gradient function: the call `jax.grad(f)`, or that of a decorator.

    Attributes:
        name: The full name of what is called.
        loss: The function that is differentiated.
        argnums: What says which arguments it is differentiated by, if that is given.
        path: The path of the module that has it.
        line: Its line there.
        given: The keywords that a `partial` gives it.
    """

    name: str
    loss: Value
    argnums: Value | None
    path: str
    line: int
    given: tuple[tuple[str, Value], ...]

    def place(self, site: Site) -> str:
        """Where it stands, in a message about a site."""
        return site.place(self.path, self.line)


def find_gradient(site: Site) -> Gradient:
    """The gradient function that the hinted statement makes or calls; refuses a statement without exactly one."""
    module = values_of(site.project).uses_of(site.facts)
    lambdas = [node for node in ast.walk(site.statement) if isinstance(node, ast.Lambda)]
    inside = [call for node in lambdas for call in site.calls(node.body)]
    for calls in (list(site.calls(site.statement)), inside):
        made = [call for call in calls if site.resolve(call.func, module.scope_of(call)) in GRADIENTS]
        if len(made) > 1:
            site.refuse("more than one gradient in this statement; give each a statement of its own")
        if made:
            uses, complete = _uses(site, made[0], calls)
            makers = _makers(site, made[0])
            if not makers:
                site.refuse(
                    "this gradient has no function to differentiate; write `jax.value_and_grad(loss_fn)`", made[0]
                )
            return _gradient(site, makers, made[0], by_name=False, uses=uses, complete=complete)
        found = [(call, makers) for call in calls if (makers := _makers(site, call.func))]
        if found:
            break
    if len(found) != 1:
        _refuse_gradients_of_objects(site, list(site.calls(site.statement)))
        reason = _why_unknown(site)
        taken = _gradient_inside(site)
        advice = "; hint the statement that calls one, by name or directly"
        if taken is not None:
            advice = f", and what this calls takes one at {taken}; move the hint to that statement"
        elif reason is not None:
            advice = f": {reason}; give the file that passes it too, or take the gradient here"
        site.refuse(f"no `jax.grad(f)` or `jax.value_and_grad(f)` can be seen here{advice}")
    call, makers = found[0]
    is_complete = (
        isinstance(call.func, ast.Name)
        and len(reads_of(site, call.func.id, site.scope, _binding(site, call.func))) == 1
    )
    return _gradient(site, makers, call, by_name=True, uses=(Use(call, site.statement),), complete=is_complete)


def _why_unknown(site: Site) -> str | None:
    """Which parameter is called for which code out of view may pass a gradient function."""
    flow = values_of(site.project)
    for call in site.calls(site.statement):
        for unknown in flow.may(flow.value_in(site.facts, call.func), lambda value: None).unknown:
            value = unknown.value
            if value is not None and isinstance(value.head, ast.arg) and not value.path and not unknown.is_open:
                return unknown.reason
    return None


def _gradient_inside(site: Site) -> str | None:
    """Where a function that a statement calls takes a gradient itself."""
    flow = values_of(site.project)
    for call in site.calls(site.statement):
        for made in callees(flow, flow.value_in(site.facts, call)).definitions:
            for node in ast.walk(made.head) if isinstance(made.head, ast.AST) else ():
                if isinstance(node, ast.Call) and flow.may(flow.at(made.module, node.func), _made_gradient).answers:
                    return site.place(made.module.facts.path, node.lineno)
    return None


def _made_gradient(value: Value) -> Value | None:
    """A value that `jax.grad(f)` or its like makes, perhaps read of an object whose class holds it."""
    path = value.path[:-1] if value.path[-1:] and value.path[-1].kind is By.BOUND else value.path
    *before, last = path if value.head in GRADIENTS and _is_called(value._replace(path=path)) else (None,)
    # `eqx.filter_grad(has_aux=True)(f)` has two calls.
    return value if last is not None and not any(step.what.positional for step in before) else None


def _makers(site: Site, node: ast.expr) -> tuple[GradientMaker, ...]:
    """What makes the gradient function that an expression may be, through `jax.jit` and `partial` of keywords."""
    flow = values_of(site.project)
    partials: list[CallArguments] = []

    def inside(value: Value) -> list[Value]:
        is_jitted = value.head == JIT and _is_called(value)
        first = value.path[0].what.first() if is_jitted or value.partial is not None else None
        if first is not None and value.partial is not None:
            partials.append(value.partial)
        return [first] if first is not None else []

    found = flow.may(flow.value_in(site.facts, node), _made_gradient, also=inside)
    makers: dict[CallArguments, GradientMaker] = {}
    for each in found.answers:
        if each.path[-1].kind is By.BOUND:
            _refuse_held(site, node)
        call = each.path[-1].what
        if any(given.is_starred for given in call.positional) or None in (name for name, _ in call.keywords):
            site.refuse("jax.grad(*args): cannot tell what is differentiated; write its arguments out", call.node)
        loss = call.at(0, "fun") or call.at(0, "f")
        if loss is not None:
            if flow.may(loss, _held).answers:
                _refuse_held(site, loss.expression or node)
            path, _, line = found.places[each].rpartition(":")
            argnums = next(filter(None, (step.what.at(1, "argnums") for step in each.path)), None)
            given = tuple(each for bound in partials for each in keywords_of(bound))
            makers[call] = GradientMaker(f"{each.head}", loss, argnums, path, int(line), given)
    if makers and any(not _is_by_keyword(bound) for bound in partials):
        lines = ", ".join(maker.place(site) for maker in makers.values())
        site.refuse(
            f"`{site.text(node)}` is a `partial` of the gradient function made at {lines}, and what it gives by "
            "position moves the other arguments; hint that statement instead, with `argnum=` and `rng=` counted there",
            node,
        )
    return tuple(makers.values())


def _held(value: Value) -> bool | None:
    """Whether a value is a function that a class holds, and that takes no object, read of an object."""
    head = value.head
    if not isinstance(head, ast.FunctionDef | ast.Lambda) or [step.kind for step in value.path] != [By.BOUND]:
        return None
    first = [*head.args.posonlyargs, *head.args.args][:1]
    is_method = isinstance(value.module.parents[head], ast.ClassDef) or [each.arg for each in first] == ["self"]
    return None if is_method else True


def _refuse_held(site: Site, node: ast.expr) -> NoReturn:
    site.refuse(
        f"`{ast.unparse(node)}` is a function that a class holds, so it is given the object before its other "
        "arguments; write `staticmethod(...)` around it in the class, or take the gradient of a method here: "
        "`jax.grad(self.loss)(...)`",
        node,
    )


def keywords_of(call: CallArguments) -> Iterator[tuple[str, Value]]:
    """The arguments of a call by keyword, as far as their names are seen."""
    return ((name, value) for name, value in call.keywords if name is not None)


def _is_by_keyword(bound: CallArguments) -> bool:
    """Whether a `partial` gives nothing but keywords that can be seen, so that positions stay."""
    return len(bound.positional) == 1 and all(name is not None for name, _ in bound.keywords)


def _is_called(value: Value) -> bool:
    """Whether a value is called, perhaps twice, and nothing else is done to it."""
    return 0 < len(value.path) <= 2 and all(step.kind is By.CALL for step in value.path)


def _refuse_gradients_of_objects(site: Site, calls: list[ast.Call]) -> None:
    """Refuses `scale.value_and_grad(f)` of an object such as Flax's `DynamicScale`, called by name or directly."""
    for call in calls:
        value: ast.expr | None = call
        if isinstance(call.func, ast.Name):
            binding = _binding(site, call.func)
            value = binding.value if binding is not None else None
        function = value.func if isinstance(value, ast.Call) else None
        if isinstance(function, ast.Attribute) and function.attr == "value_and_grad" and site.resolve(function) is None:
            text = site.text(function)
            site.refuse(
                f"`{text}` takes the gradient itself, and no microbatches can be put between; if it is that of a "
                "`DynamicScale`, take the gradient of the scaled loss with `jax.value_and_grad`, hint that, and give "
                'what it returns to the `DynamicScale`, as "Scale the loss" in docs/recipes.md does',
                call,
            )


def is_gradient_decorator(site: Site, decorator: ast.expr) -> bool:
    """Whether a decorator differentiates: `@jax.grad`, `@partial(jax.grad, ...)`, `@eqx.filter_grad(...)`."""
    flow = values_of(site.project)
    given = flow.value_in(site.facts, decorator).done(Access(By.CALL, flow.no_arguments))
    return bool(flow.may(given, lambda value: value.head in GRADIENTS or None).answers)


def _gradient(
    site: Site,
    makers: tuple[GradientMaker, ...],
    wrapped: ast.Call,
    by_name: bool,
    uses: tuple[Use, ...],
    complete: bool,
) -> Gradient:
    found = {_argnums(site, maker) for maker in makers}
    if len(found) > 1 and site.hint.argument("argnum") is None:
        refuse_several(site, makers, wrapped.func)
    return Gradient(makers, frozenset().union(*found), wrapped, by_name, uses, complete)


def refuse_several(site: Site, makers: Sequence[GradientMaker], node: ast.expr) -> NoReturn:
    """Refuse a gradient function that is one of several, which take different arguments."""
    lines = ", ".join(maker.place(site) for maker in makers)
    site.refuse(
        f"`{site.text(node)}` has several meanings ({lines}); give this gradient function a name of its own", node
    )


def _argnums(site: Site, maker: GradientMaker) -> frozenset[int]:
    if maker.argnums is None:
        return frozenset((0,))
    found = _positions(values_of(site.project), maker.argnums)
    if found is None:
        if site.hint.argument("argnum") is not None:
            return frozenset()
        site.refuse(
            "`argnums` is computed, so the batch cannot be told from what is differentiated; write `argnum=` with the "
            "position of the argument that has one row per example"
        )
    return found


def _positions(flow: ValueFlow, value: Value) -> frozenset[int] | None:
    """The positions that a value says, also in `nnx.DiffState(0, nnx.Param)`; None if they are not seen."""

    def end(each: Value) -> Value | None:
        is_written = isinstance(each.expression, ast.Constant | ast.Tuple | ast.List)
        return each if is_written or each.outside == "flax.nnx.DiffState()" else None

    found = flow.must(value, end)
    match found:
        case Value(head=ast.Constant(value=int(position))):
            return frozenset((position,))
        case Value(head=ast.Tuple(elts=parts) | ast.List(elts=parts)):
            each = [_positions(flow, found._replace(head=part)) for part in parts]
            return None if None in each else frozenset().union(*(one for one in each if one is not None))
        case Value(path=[Access(what=CallArguments() as call)]) if (inner := call.at(0, "argnum")) is not None:
            return _positions(flow, inner)
    return None


def _uses(site: Site, made: ast.Call, calls: list[ast.Call]) -> tuple[tuple[Use, ...], bool]:
    """Calls of the gradient function `made`, in the statement itself or by its name; and whether these are all."""
    holder = made
    while True:
        # `jax.jit(jax.grad(f))` and `partial(jax.grad(f), scale=2)` are called with the same arguments.
        holding = next((call for call in calls if holder in call.args[:1] and _keeps_places(site, call)), None)
        if holding is None:
            break
        holder = holding
    direct = tuple(Use(call, site.statement) for call in calls if call.func is holder)
    if direct:
        return direct, True
    statement = site.statement
    if isinstance(statement, ast.Assign) and statement.value is holder and isinstance(statement.targets[0], ast.Name):
        name = statement.targets[0].id
        bindings = site.scope.bindings.get(name, ()) if site.scope.owner(name) is site.scope else ()
        binding = next((each for each in bindings if each.statement is statement), None)
        reads = reads_of(site, name, site.scope, binding)
        uses = tuple(use for head in reads for use in _calls_of(site, head))
        return uses, len(statement.targets) == 1 and len(reads) == len(uses)
    return (), False


def _keeps_places(site: Site, call: ast.Call) -> bool:
    """Whether a call makes of a function one whose arguments have the same positions."""
    form = site.call_form(call)
    if form.is_called:
        return site.resolve(form.function) == JIT
    return not form.positional and all(each.arg is not None for each in form.keywords)


def _calls_of(site: Site, name: ast.Name) -> Iterator[Use]:
    """The call of a name where it is read."""
    statement = values_of(site.project).uses_of(site.facts).statement_of(name)
    if kind_of(statement) == STATEMENT:
        yield from (Use(call, statement) for call in site.calls(statement) if call.func is name)


def reads_of(site: Site, name: str, scope: Scope, binding: Binding | None = None) -> list[ast.Name]:
    """Where the name that a scope sees is read, or where a binding of it may hold if that is given."""
    module, owner = values_of(site.project).uses_of(site.facts), scope.owner(name)
    if owner is None:
        return []
    heads = module.heads_of(name, owner)
    return [
        each for each in heads if binding is None or binding in reaching(module, each, module.scope_of(each), owner)
    ]


def _binding(site: Site, name: ast.Name) -> Binding | None:
    """The binding of a name that holds where it is read, None if several may."""
    module = values_of(site.project).uses_of(site.facts)
    scope = module.scope_of(name)
    owner = scope.owner(name.id)
    found = reaching(module, name, scope, owner) if owner is not None else []
    return found[0] if len(found) == 1 else None
