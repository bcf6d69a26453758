"""The closed-over values of a loss function, and whether they can become arguments."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from mmrewrite.analysis.steps.gradients import Gradient, is_gradient_decorator, reads_of
from mmrewrite.analysis.steps.losses import (
    Loss,
    UnnamedKey,
    find_function,
    has_a_key_for_each_row,
    keeps_values,
    looks_like_key,
    made_as_keys,
)
from mmrewrite.codemod.site import Site
from mmrewrite.source.calls import stars_of
from mmrewrite.source.names import root_of
from mmrewrite.values.arguments import parameter_of
from mmrewrite.values.flow import values_of
from mmrewrite.values.value import Value


@dataclass(frozen=True)
class Closed:
    """A closed-over value of a loss: a local name of the surrounding function.

    `is_data` is false if the loss only calls the value or its methods, as it does a model. `is_key_of_rows` is true of
    a key that was split into one for each example, which is data and no key for all of them. `node` is its first use.
    """

    name: str
    is_key: bool
    is_data: bool
    is_key_of_rows: bool = False
    node: ast.expr = field(default_factory=lambda: ast.Name(""), compare=False, repr=False)


def closed_over(site: Site, loss: Loss) -> list[Closed]:
    """The closed-over values of a loss, in the order of their first use."""
    called = {root_of(node.func) for node in ast.walk(loss.node) if isinstance(node, ast.Call)}
    parts = {root_of(node) for node in ast.walk(loss.node) if isinstance(node, ast.Attribute)}
    found: dict[str, Closed] = {}
    names = [node for node in ast.walk(loss.node) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    for node in sorted(names, key=lambda name: (name.lineno, name.col_offset)):
        owner = loss.scope.owner(node.id)
        if owner is None or owner is loss.scope or owner.kind != "function":
            continue
        if any(binding.kind in ("function", "class", "import") for binding in owner.bindings[node.id]):
            continue
        data = node not in called and node not in parts
        before = found.get(node.id)
        of_rows = has_a_key_for_each_row(site, loss, node.id)
        is_key = not of_rows and (looks_like_key(node.id) or made_as_keys(site, loss.facts, node) is True)
        found[node.id] = Closed(
            node.id,
            is_key,
            data or (before is not None and before.is_data),
            of_rows,
            node if before is None else before.node,
        )
    return list(found.values())


def cannot_be_given(site: Site, gradient: Gradient, loss: Loss, names: list[str]) -> str | None:
    """Why `names` cannot become parameters of the loss and arguments of the gradient's only call, else None.

    If they can, the values are the same: nothing runs between the call, which now reads them, and the loss.
    """
    node = loss.node
    if loss.facts is not site.facts:
        return f"the loss is defined in another module ({site.place(loss.facts.path, node.lineno)})"
    if isinstance(node, ast.AsyncFunctionDef):
        return "the loss is an `async def`"
    if node.args.vararg or node.args.defaults:
        return "the loss has `*args` or defaults, after which no parameter can go"
    if not gradient.complete or len(gradient.uses) != 1:
        maker = gradient.makers[0]
        is_here = maker.path == site.facts.path and maker.line == site.statement.lineno
        made = "" if is_here else f" ({maker.place(site)} makes it)"
        return f"not every call of this gradient can be seen{made}"
    use = gradient.uses[0]
    if "*" in stars_of(use.call):
        return "star-args hide the arguments of the gradient"
    if len(use.call.args) != len(node.args.posonlyargs) + len(node.args.args):
        return "the gradient is not called with each parameter of the loss by position"
    scope = values_of(site.project).uses_of(site.facts).scope_of(use.call)
    for name in names:
        if scope.owner(name) is not loss.scope.owner(name):
            return f"`{name}` is not a name where the gradient is called"
    rebound = {name for part in ast.walk(node) if isinstance(part, ast.Nonlocal | ast.Global) for name in part.names}
    for name in names:
        if name in rebound:
            # As a parameter it would be another name, which code outside of the loss does not see changed.
            return f"the loss assigns `{name}`, which it declares `nonlocal` or `global`"
    if node is gradient.function:
        return None
    outside = site.facts.names.scope
    if not isinstance(node, ast.Lambda):
        outside = site.facts.scope_of(node)
    for decorator in getattr(node, "decorator_list", ()):
        if not is_gradient_decorator(site, decorator) and not keeps_values(site.facts, decorator, outside):
            return f"`@{site.text(decorator)}` may look at the parameters of the loss"
    if is_used_elsewhere(site, gradient, loss):
        changed = next((name for name in names if not _is_set_above(loss, name)), None)
        if changed is not None:
            own = _name(site, loss)
            used = f"`{own}` is" if own is not None else "its `lambda` may be"
            return f"{used} used elsewhere, too, and `{changed}` changes below it"
    return None


def reachable(site: Site, gradient: Gradient, loss: Loss, key: UnnamedKey, names: Sequence[str]) -> UnnamedKey:
    """A random key that is missing in a hint, as it is if the loss can be given it beside some other names."""
    if key.closed is None or remade_loss(site, gradient, loss, [*names, key.closed]) is not None:
        return key
    why = cannot_be_given(site, gradient, loss, [*names, key.closed])
    return key if why is None else key.out_of_reach(why)


@dataclass(frozen=True)
class RemadeLoss:
    """A loss that its factory makes anew of what it is given: `lambda params, batch: make_loss(batch)(params)`.

    Attributes:
        text: The source of it.
        names: The names of the values that become its last parameters.
    """

    text: str
    names: tuple[str, ...]


def remade_loss(site: Site, gradient: Gradient, loss: Loss, names: Sequence[str]) -> RemadeLoss | None:
    """The loss with some of the parameters of its factory as parameters of its own, None if that may be another loss.

    The factory does nothing but define the loss, and it is given names, which are not assigned again meanwhile.
    """
    made, factory = _made_by(site, gradient.loss), loss.scope.parent
    node = factory.node if factory is not None else None
    if (
        made is None
        or gradient.by_name
        or len(gradient.uses) != 1
        or not isinstance(node, ast.FunctionDef | ast.Lambda)
    ):
        return None
    function = find_function(site, values_of(site.project).value_in(site.facts, made.func))
    if function is None or function.node is not node or function.num_bound or not _only_defines(node, loss.node):
        return None
    arguments, call = loss.node.args, gradient.calls[0]
    others = (arguments.vararg, arguments.kwarg, *arguments.kwonlyargs, *arguments.defaults)
    parameters = loss.parameters
    if any(others) or loss.num_bound or len(call.args) != len(parameters) or call.keywords or not gradient.complete:
        return None
    given = {parameter_of(node, made, each): each for each in (*made.args, *(each.value for each in made.keywords))}
    passed = [given.get(name) for name in names]
    values = [each.id for each in given.values() if isinstance(each, ast.Name)]
    scope = values_of(site.project).uses_of(site.facts).scope_of(call)
    if None in given or not all(isinstance(each, ast.Name | ast.Constant) for each in given.values()):
        return None
    chosen = [each.id for each in passed if isinstance(each, ast.Name)]
    is_fixed = all(len((scope.owner(name) or scope).bindings.get(name, ())) <= 1 for name in values)
    if len(chosen) != len(names) or len(set(values)) != len(values) or set(values) & set(parameters) or not is_fixed:
        return None
    listed = ", ".join(parameters)
    return RemadeLoss(f"lambda {', '.join((*parameters, *chosen))}: {site.text(made)}({listed})", tuple(chosen))


def _only_defines(factory: ast.FunctionDef | ast.Lambda, loss: ast.AST) -> bool:
    """Whether a function does nothing but define and return a loss."""
    if isinstance(factory, ast.Lambda):
        return factory.body is loss
    if factory.decorator_list:
        return False
    *before, last = factory.body
    is_text = (
        isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in before if each is not loss
    )
    return all(is_text) and isinstance(last, ast.Return) and (isinstance(last.value, ast.Name) or last.value is loss)


def _made_by(site: Site, loss: Value) -> ast.Call | None:
    """The call in the site's module that makes a loss."""
    node = loss.expression if loss.module.facts is site.facts else None
    if isinstance(node, ast.Name):
        binding = site.facts.names.binding(node.id, loss.module.scope_of(node))
        node = binding.value if binding is not None else None
    return node if isinstance(node, ast.Call) else None


def _name(site: Site, loss: Loss) -> str | None:
    """The name of a loss, None for a `lambda` that is not assigned to one by itself."""
    if not isinstance(loss.node, ast.Lambda):
        return loss.node.name
    match values_of(site.project).uses_of(loss.facts).parents.get(loss.node):
        case (
            ast.Assign(targets=[ast.Name(id=name)])
            | ast.AnnAssign(target=ast.Name(id=name))
            | ast.NamedExpr(target=ast.Name(id=name))
        ):
            return name
        case _:
            return None


def is_used_elsewhere(site: Site, gradient: Gradient, loss: Loss) -> bool:
    """Whether a loss may be used otherwise than by the gradient; new parameters then need defaults."""
    if loss.facts is not site.facts:
        return True
    if loss.node is gradient.function:
        return False
    name = _name(site, loss)
    if name is None:
        return True
    uses = values_of(site.project).uses_of(loss.facts)
    decorated = (
        isinstance(gradient.function, ast.Name)
        and gradient.by_name
        and any(use.call.func is gradient.function for use in gradient.uses)
    )
    reads = reads_of(site, name, site.facts.scope_of(uses.statement_of(loss.node)))
    # Another name for the loss is a read that is not the gradient's, and may be called.
    alone = len(reads) == 1 and any(node is reads[0] for node in ast.walk(gradient.function))
    return not alone and not decorated


def _is_set_above(loss: Loss, name: str) -> bool:
    """Whether a closed-over value is set above the loss only, outside of loops: then a default has the same value."""
    owner = loss.scope.owner(name)
    statements = [binding.statement for binding in (owner.bindings[name] if owner is not None else [])]
    loops = (ast.For, ast.AsyncFor, ast.While)
    return all(
        each is None
        or (each.lineno < loss.node.lineno and not any(isinstance(h, loops) for h in loss.facts.names.around(each)))
        for each in statements
    )
