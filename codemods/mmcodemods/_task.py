"""The base class of codemods that turn a call into a task."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import libcst as cst

from mmrewrite.codemod.base import MeshCodemod
from mmrewrite.directives.collect import Argument

REMAT = frozenset(
    (
        "jax.checkpoint",
        "flax.linen.remat",
        "flax.nnx.remat",
        "haiku.remat",
        "equinox.filter_checkpoint",
    )
)


class TaskCodemod(MeshCodemod):
    """A codemod that writes `mm.task`."""

    _target: cst.Call | None = None
    _wrapper = ""
    _arguments: Mapping[str, str] = MappingProxyType({})

    @property
    def axes(self) -> list[tuple[str, Argument]]:
        """The slice of the mesh that the hint names."""
        return [(name, argument) for name, argument in self.hint.named if name != "name"]

    def task_text(self, name: str | None) -> str:
        """`mm.Task(...)` for this hint, with the hint's name, else with `name`, which is source text."""
        own = self.hint.argument("name")
        return self.nameless_task_text(own.text if own else name)

    def nameless_task_text(self, name: str | None = None) -> str:
        """`mm.Task(...)` for the slice of this hint, with `name` whatever the hint says."""
        self.site.check_slice(self.axes)
        arguments = [f"name={name}"] if name else []
        return f"{self.site.runtime}.Task({', '.join([*arguments, f'mesh_slice={self.site.slice_text(self.axes)}'])})"

    def decorator_position(self, decorators: Sequence[ast.expr]) -> int:
        """Where a task goes among decorators: above the first that rematerialises, else below all.

        A task inside `jax.checkpoint` would be hidden in the sub-jaxpr of its equation, where the step is not cut.
        """
        for index, decorator in enumerate(decorators):
            names = [decorator, *([decorator.func, *decorator.args] if isinstance(decorator, ast.Call) else [])]
            if any(self.site.resolve(name) in REMAT for name in names):
                return index
        return len(decorators)

    def place_call(self, statement: ast.stmt, call: ast.Call, task: str) -> None:
        """Have `f(x)` become `mm.task(f, task=...)(x)`."""
        self.wrap_call(statement, call, "task", task=task)

    def wrap_call(self, statement: ast.stmt, call: ast.Call, wrapper: str, **arguments: str) -> None:
        """Have `f(x)` become `mm.wrapper(f, ...)(x)`; arguments are source text."""
        self._target = self.site.call(statement, call)
        self._wrapper, self._arguments = wrapper, arguments
        self.site.transform(statement, self)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Wrap the callee of the chosen call."""
        if original_node is not self._target:
            return updated_node
        wrapper = f"{self.site.runtime}.{self._wrapper}"
        return updated_node.with_changes(func=self.generated(wrapper, updated_node.func, **self._arguments))
