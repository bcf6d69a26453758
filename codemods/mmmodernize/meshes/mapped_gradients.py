"""Gradients and collectives in a function that runs on every device of a mesh, and code in it that is not in view.

They decide whether `jax.shard_map` computes the same as the old function: with `check_vma=True`, its default, the
gradient of a replicated value is summed over the devices.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from mmmodernize.calls.call_forms import given_to
from mmmodernize.meshes.code_in_view import CodeSearch, EnteredCode
from mmmodernize.types.array_functions import COLLECTIVES, CONTROL_FLOW
from mmmodernize.types.libraries import ARRAY_LIBRARIES
from mmrewrite.codemod.array_methods import ARRAY_METHODS
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.array_libraries import GRADIENTS
from mmrewrite.values.callbacks import may_be_called
from mmrewrite.values.callees import given_functions
from mmrewrite.values.flow import ValueFlow
from mmrewrite.values.value import ELEMENT, Access, By, Decorated, Function, Unknown, Value, item

# Functions that take gradients, or what is made of them. JAX has its own under several homes: `jax.api.grad`.
_OF_JAX = frozenset(
    (
        *(
            "fwd_and_bwd",
            "grad",
            "hessian",
            "jacfwd",
            "jacobian",
            "jacrev",
            "jet",
            "jvp",
            "linear_transpose",
            "linearize",
        ),
        *("minimize", "value_and_grad", "vjp"),
    )
)
_DIFFERENTIATE = GRADIENTS.union(
    f"{home}.{name}"
    for home, names in (
        *((home, ("grad", "value_and_grad", "vjp", "jvp")) for home in ("flax.linen", "flax.core.lift", "flax.core")),
        ("flax.nnx", ("vjp", "jvp")),
        ("haiku", ("grad", "value_and_grad")),
        ("equinox", ("filter_hessian", "filter_jacfwd", "filter_jacrev", "filter_jvp", "filter_vjp")),
        ("optax", ("value_and_grad_from_state",)),
        ("optax.second_order", ("fisher_diag", "hessian_diag", "hvp")),
    )
    for name in names
)
# The keyword by which `update` of optax is given the function whose gradients a line search takes.
_OF_SEARCHES = "value_fn"
PMAP = "jax.pmap"
# So much code is looked through for the reason that says most.
_MOST = 200

# Methods of arrays, containers, and modules and optimizers of libraries, which do not differentiate. Those that the
# project has under such a name are gone into.
_METHODS = ARRAY_METHODS | {
    *("append", "apply", "copy", "extend", "format", "get", "items", "join", "keys", "pop", "replace", "update"),
    "values",
}


def mapped_by(module: ModuleUses, mapping: ast.expr, name: str) -> Value | None:
    """The function that `shard_map` or `pmap` is given, first or by a name, or decorates; None if it is not here."""
    function = given_to(module, mapping, name)
    if not isinstance(function, Function):
        return Value(module, function) if function is not None else None
    decorators = function.decorator_list
    above = {mapping, *module.above(mapping)}
    place = next(place for place, each in enumerate(decorators) if each in above) + 1
    return Value(module, Decorated(function, place) if place < len(decorators) else function)


class MappedCode(CodeSearch):
    """What a function that runs on every device does, with all that it calls.

    Unless it is to be `whole`, it ends in large programs once something is unseen: that decides alone.

    Attributes:
        differentiated: The functions that it takes gradients of.
        collectives: The full names of those that it may call.
        control_flow: The same.
        unseen: What it calls or hands on that leads out of view, as texts.
    """

    def __init__(self, flow: ValueFlow, function: Value, *, whole: bool = False) -> None:
        super().__init__(flow, function.module, hides_in_objects=False)
        self.differentiated: dict[Value, None] = {}
        self.collectives: list[str] = []
        self.control_flow: list[str] = []
        self.unseen: list[str] = []
        self._whole = whole
        head = function.head.definition if isinstance(function.head, Decorated) else function.head
        assert isinstance(head, ast.AST)
        self._mapped = head
        start = EnteredCode(function.module, head)
        called = function.done(Access(By.CALL, flow.no_arguments))
        self._go_through([part for each in self._led_to(start, head, called, "calls") for part in each.parts])

    def _is_enough(self, number: int) -> bool:
        return number > _MOST and not self._whole and bool(self.unseen)

    def _look_at(self, code: EnteredCode, part: ast.AST) -> None:
        if isinstance(part, ast.Name | ast.Attribute):
            self.seen.add(part)
            self._note(code.module.full_name(part))

    def _note(self, name: str | None) -> None:
        if name in COLLECTIVES:
            self.collectives.append(name)
        elif name in CONTROL_FLOW:
            self.control_flow.append(name)

    def _stop_at(self, code: EnteredCode, part: ast.AST, value: Value, *, is_handed_on: bool) -> None:
        name = f"{value.head}"
        self._note(name)
        root, last = name.partition(".")[0], name.rpartition(".")[2]
        takes_gradients = name in _DIFFERENTIATE or (root == "jax" and last in _OF_JAX)
        if takes_gradients and value.path[0].kind is By.CALL:
            function = value.path[0].what.first()
            if function is None:
                self.unseen.append(f"`{name}`")
            else:
                self.differentiated[function] = None
            return
        calls = [step.what for step in value.path if step.kind is By.CALL]
        self.differentiated |= {each: None for call in calls for word, each in call.keywords if word == _OF_SEARCHES}
        if calls and last[:1].islower() and root in ARRAY_LIBRARIES:
            given = (each for each in given_functions(calls[0]) if not may_be_called(name, calls[0], each))
            # What calls no function may be any that is not known.
            self.unseen += [f"`{name}`" for each in given if self._flow.must(each, _is_function)]

    def _stop(self, text: str) -> None:
        self.unseen.append(text)

    def _out_of_view(self, code: EnteredCode, part: ast.AST, value: Value, text: str) -> Iterable[EnteredCode]:
        if not isinstance(value.head, ast.Attribute) and self._is_of_arguments(value):
            return ()
        method = value.head.attr if isinstance(value.head, ast.Attribute) else ""
        if method not in _METHODS:
            self.unseen.append(text[text.index("`") : text.rindex("`") + 1])
            return ()
        found = self._flow.stores.in_classes(method)
        return [EnteredCode(home, each.node) for home, _, each in found if isinstance(each.node, Function)]

    def _is_of_arguments(self, value: Value) -> bool:
        """Whether something is seen to be of the arguments of the mapped function, which are trees of arrays."""
        # Also behind `enumerate` and `zip`.
        ends = [each for _, each in self._flow.walk(value._replace(path=(ELEMENT, item(1))), _never)]
        values = [each.value if isinstance(each, Unknown) else each for each in ends]
        return all(each is not None and self._is_of_itself(each) for each in values)

    def _is_of_itself(self, value: Value) -> bool:
        """Whether a value is an argument of the mapped function, or of one in it, or is computed of these there."""
        module, head = value.module, value.head
        if not isinstance(head, ast.AST) or self._mapped not in module.above(head):
            return False
        names = (each for each in ast.walk(head) if isinstance(each, ast.Name))
        owners = (module.scope_of(each).owner(each.id) for each in names)
        return all(owner is None or owner.node is self._mapped for owner in owners)


def _is_function(value: Value) -> bool | None:
    return (isinstance(value.head, Function | ast.Lambda) and not value.path) or None


def _never(value: Value) -> None:
    """No answer, for those who ask where a value ends."""
