"""Give `register_task` a task instead of the arguments that it took in the first version of MultiMesh.

    register_task("layer_0", devices=[0, 1], dims=[2], device_axes=["x"])
    ->  register_task("layer_0", task=Task(mesh=TaskMesh(devices=[0, 1], axis_sizes=[2], axis_names=["x"])))

A callback returned the device ids of the name that it was given. It stays, and is called by one that returns a task.

To check: registrations with several names; the first that matches counts, as before.

Refused: `loop_submesh_size=`, for which there is `Task(loop_dependent_mesh_slice=...)`; a callback that returned more
than device ids, or of which the source does not show how many arguments it takes; arguments in `*` or `**`.
See https://nv-legate.github.io/multimesh-jax/ for MultiMesh.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.meshes.multimesh_uses import MARKERS, PACKAGES, is_carried, spelled
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.brackets import call_brackets, on_one_line
from mmrewrite.source.calls import stars_of

_NAMES = tuple(f"{owner}.register_task" for owner in PACKAGES)
_FIRST = frozenset(("devices", "dims", "device_axes", "logical_axes", "loop_submesh_size"))
_BY_HAND = (
    "write `task=mm.Task(mesh=mm.TaskMesh(devices=..., axis_sizes=..., axis_names=...), logical_axes=...)`, or a "
    "`callback` of (name, backprop) that returns such a task"
)


class ReplaceFirstRegisterTask(ModernizeCodemod):
    """Writes the arguments of a call anew, each as it stands."""

    extra_markers: ClassVar[tuple[bytes, ...]] = MARKERS
    beside: ClassVar = _NAMES

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Calls with one of the earlier arguments."""
        for use in module.uses(_NAMES):
            call = module.call_at(use.node)
            if call is not None and any(word.arg in _FIRST for word in call.keywords):
                yield Location(module, use.node, use)

    def rewrite(self) -> None:
        """Replace everything behind the first argument."""
        if not is_carried(self.site.module):
            self.site.leave("this module keeps MultiMesh")
        call = self.site.call
        assert call is not None
        given = {word.arg: word.value for word in call.keywords}
        if stars_of(call) or len(call.args) != 1:
            self.refuse(f"this is how the first version of MultiMesh was called; {_BY_HAND}", call)
        if "loop_submesh_size" in given:
            self.refuse(f"`loop_submesh_size=` is `Task(loop_dependent_mesh_slice=...)` today; {_BY_HAND}", call)
        callback = given.pop("callback", None)
        if not set(given) <= _FIRST or "dims" not in given or ("devices" in given) == (callback is not None):
            self.refuse(f"this is how the first version of MultiMesh was called; {_BY_HAND}", call)
        if callback is not None:
            names = self._arguments_of(callback)
            if names != 1:
                self.refuse(f"the source does not show that this callback returns device ids; {_BY_HAND}", callback)
            value = f"callback=lambda name, backprop: {self._task(given, f'{self._on_one_line(callback)}(name)')}"
        else:
            value = f"task={self._task(given, self._on_one_line(given['devices']))}"
        brackets = call_brackets(self.site.source, call)
        self.site.edit(brackets.items[0][1], brackets.closing, f", {value}")
        for word in call.keywords:
            self.site.meant.remove(word)
        self.site.meant.append_argument(call, value)

    def _task(self, given: dict[str | None, ast.expr], devices: str) -> str:
        text = self._on_one_line
        axes = f"axis_sizes={text(given['dims'])}"
        axes += f", axis_names={text(given['device_axes'])}" if "device_axes" in given else ', axis_names=("x",)'
        mesh = f"{spelled(self.site, 'TaskMesh')}(devices={devices}, {axes})"
        pairs = f", logical_axes={text(given['logical_axes'])}" if "logical_axes" in given else ""
        return f"{spelled(self.site, 'Task')}(mesh={mesh}{pairs})"

    def _on_one_line(self, node: ast.expr) -> str:
        """The source of an argument, on one line if it holds nothing but names, numbers and short strings."""
        return on_one_line(self.site.source, *self.site.span(node))

    def _arguments_of(self, callback: ast.expr) -> int | None:
        """How many arguments a callback takes, as far as the module shows."""
        function: ast.AST | None = callback
        if isinstance(callback, ast.Name):
            binding = self.site.facts.names.binding(callback.id, self.site.scope)
            function = binding.node if binding is not None else None
        if not isinstance(function, ast.FunctionDef | ast.Lambda):
            return None
        arguments = function.args
        if arguments.vararg is not None or arguments.kwarg is not None or arguments.kwonlyargs:
            return None
        return len(arguments.posonlyargs) + len(arguments.args)
