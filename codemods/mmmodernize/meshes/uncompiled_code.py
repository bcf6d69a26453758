"""Code in a mesh context outside compiled functions, and whether `jax.set_mesh` would change where its arrays land.

`with mesh:` only gave `pjit` its mesh; everything else ran on the default device. Under `jax.set_mesh` new arrays are
placed on all devices of the mesh: https://docs.jax.dev/en/latest/_autosummary/jax.set_mesh.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property

from mmmodernize.calls.call_forms import given_to
from mmmodernize.meshes.code_in_view import CodeSearch, EnteredCode, OutOfView
from mmmodernize.meshes.mesh_contexts import (
    CALLED,
    DECORATOR,
    ENTERED,
    ENVIRONMENT,
    LEFT,
    STATEMENT,
    MeshContext,
    run_now,
)
from mmmodernize.meshes.partition_specs import SPECS
from mmmodernize.names.shared_names import CONSTRAINTS, MESHES, PJIT, RESOURCE_ENVS
from mmmodernize.types.array_functions import COMPUTE, TRANSFORMS
from mmmodernize.types.libraries import ARRAY_LIBRARIES, library_name
from mmmodernize.types.possible_arrays import PossibleArrays, is_compiled_for_mesh
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.callees import Callees, callees
from mmrewrite.values.flow import ValueFlow
from mmrewrite.values.value import Access, By, Function, Value

_TRACERS = frozenset(
    (
        *(*PJIT, *TRANSFORMS, "jax.eval_shape", "jax.make_jaxpr", "jax.jacfwd", "jax.jacrev", "jax.jvp"),
        *("jax.linearize", "jax.remat", "jax.vjp"),
    )
)
# These make no array, or put it where an argument says.
_HARMLESS = (
    *("jax.block_until_ready", "jax.config", "jax.debug", "jax.device_count", "jax.device_get", "jax.device_put"),
    *("jax.devices", "jax.distributed", "jax.eval_shape"),
    *SPECS,
    *MESHES,
    *("jax.experimental.mesh_utils", "jax.experimental.multihost_utils", "jax.experimental.pjit"),
    *("jax.interpreters.pxla", "jax.local_device_count", "jax.local_devices", "jax.make_array_from_callback"),
    *("jax.make_array_from_process_local_data", "jax.make_array_from_single_device_arrays", "jax.process_count"),
    *("jax.process_index", "jax.profiler", "jax.sharding", "jax.ShapeDtypeStruct", "jax.tree", "jax.tree_util"),
    *("jax.jit", "flax.core", "flax.jax_utils.prefetch_to_device"),
    *(
        f"flax.linen.{module}{name}"
        for module in ("", "partitioning.", "spmd.")
        for name in (
            *("axis_rules", "get_axis_names", "get_logical_axis_rules", "logical_axis_rules", "logical_to_mesh"),
            *("logical_to_mesh_axes", "logical_to_mesh_sharding"),
        )
    ),
    "flax.serialization",
    "flax.traverse_util",
    "mmruntime.compat",
)
# fmt: off
_HARMLESS_METHODS = frozenset(
    (
        "add_scalar", "append", "clear", "close", "compile", "copy", "debug", "decode", "encode", "endswith", "error",
        "extend", "flush", "format", "get", "info", "item", "items", "join", "keys", "log", "lower", "lstrip", "pop",
        "popitem", "print", "read", "replace", "result", "rstrip", "set_description", "set_postfix", "setdefault",
        "shutdown", "split", "splitlines", "start", "startswith", "stop", "strip", "tolist", "update", "upper",
        "values", "warning", "wait", "write", "block_until_ready", "addressable_data", "is_fully_replicated", "as_text",
        "cost_analysis", "memory_analysis", "enter_context", "__enter__", "__exit__",
    )
)
# fmt: on


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
# Callers are followed to so many functions.
_MOST_FUNCTIONS = 100


class UncompiledCode:
    """Searches the code that a mesh context runs."""

    def __init__(self, modules: Mapping[str, ModuleUses], flow: ValueFlow) -> None:
        self._modules, self._flow, self._arrays = modules, flow, PossibleArrays(flow)

    def problem(self, context: MeshContext) -> str | None:
        """Why `jax.set_mesh` in place of a context would not be the same, else None."""
        module, holder = context.module, context.holder
        if context.kind in (DECORATOR, CALLED):
            return (
                "the mesh is a decorator here, which `jax.set_mesh` cannot be; write `with mesh:` inside the function"
            )
        if context.is_conditional and context.name is not None:
            return "`as` names one of several meshes, and `jax.set_mesh(mesh)` gives None; choose it in a statement"
        if context.kind == LEFT:
            return "the mesh is entered and left by hand; write `with mesh:`"
        if context.kind in (STATEMENT, ENVIRONMENT):
            if not isinstance(holder, ast.Expr | ast.Assign) or module.scope_of(context.node).kind != "module":
                return "the mesh stays in context after this function returns, for whatever code comes then"
            if "__exit__" in module.attributes:
                return "the mesh is entered and left by hand; write `with mesh:`"
        if context.kind == ENVIRONMENT and self.environment_mesh(context) is None:
            return "only `ResourceEnv(mesh, ...)` can be put in context; write `with mesh:`"
        if context.kind == ENTERED and context.outlasts:
            return "the stack that holds the mesh may outlive this function; write `with mesh:`"
        if context.kind == ENTERED and not isinstance(holder, ast.Expr):
            return "the value of `enter_context(mesh)` is used, and `jax.set_mesh(mesh)` gives None; use `mesh` itself"
        if self._is_traced(module, context.node):
            return "this runs inside a compiled function, where `jax.set_mesh` is not allowed"
        method = next((holder for holder in module.above(context.node) if isinstance(holder, ast.FunctionDef)), None)
        if method is not None and method.name == "__call__" and self._traces_objects is not None:
            return f"{self._traces_objects} may trace this object, and `jax.set_mesh` is not allowed in a trace"
        if (waits := suspension(context)) is not None:
            return f"{waits}, and under `jax.set_mesh` what it makes would land on the whole mesh"
        return self._search(module).why_stopped(context.body)

    def run_by(self, context: MeshContext) -> Set[ast.AST]:
        """The statements of a context without a problem, and the definitions that they run outside of `pjit`."""
        search = self._search(context.module)
        search.why_stopped(context.body)
        return search.seen

    def _search(self, module: ModuleUses) -> CodeSearch:
        return _UncompiledSearch(self._flow, module, self._arrays)

    def environment_mesh(self, context: MeshContext) -> ast.expr | None:
        """The mesh of `thread_resources.env = ResourceEnv(mesh, ())`, None for other environments."""
        value = context.node
        if not isinstance(value, ast.Call):
            return None
        made = context.module.full_name(value.func)
        given = [*value.args[:1], *(word.value for word in value.keywords if word.arg == "physical_mesh")]
        is_seen = made in RESOURCE_ENVS and len(given) == 1 and not isinstance(given[0], ast.Starred)
        return given[0] if is_seen else None

    @cached_property
    def _traced(self) -> frozenset[ast.AST]:
        """The functions that JAX traces."""
        decorated = (each for _, each in self._given_to_tracers if isinstance(each, Function))
        called = (value.head for _, found in self._tracing for value in found.definitions)
        return frozenset((*decorated, *(each for each in called if isinstance(each, ast.AST))))

    def _is_traced(self, module: ModuleUses, node: ast.AST) -> bool:
        """Whether code stands in a function that JAX traces, or in one that such a function calls by its name."""
        queue = [(module, each) for each in module.above(node) if isinstance(each, _FUNCTIONS)]
        for home, function in queue:
            if function in self._traced:
                return True
            is_method = isinstance(home.parents.get(function), ast.ClassDef)
            calls = self._flow.calls_of(home, function)[0] if not is_method and len(queue) < _MOST_FUNCTIONS else ()
            for call in filter(None, (each.node for each in calls)):
                caller = next((each for each in self._modules.values() if call in each.parents), None)
                above = caller.above(call) if caller is not None else ()
                found = [(caller, each) for each in above if caller is not None and isinstance(each, _FUNCTIONS)]
                queue += [each for each in found if each not in queue]
        return False

    @cached_property
    def _traces_objects(self) -> str | None:
        """A place where JAX may trace an object of a class of the project as a function, in words for a message."""
        for place, found in self._tracing:
            methods = (getattr(each.head, "name", "") == "__call__" for each in found.definitions)
            if found.unknown or any(methods):
                return place
        return None

    @cached_property
    def _tracing(self) -> Sequence[tuple[str, Callees]]:
        """The calls that give JAX a function to trace, each as a place, and what that function runs."""
        call = Access(By.CALL, self._flow.no_arguments)
        return [
            (f"line {node.lineno} of {module.facts.path}", callees(self._flow, Value(module, node, (call,))))
            for module, node in self._given_to_tracers
            if isinstance(node, ast.expr)
        ]

    @cached_property
    def _given_to_tracers(self) -> Sequence[tuple[ModuleUses, ast.expr | Function]]:
        return [
            (module, given)
            for module in self._modules.values()
            for use in module.uses(_TRACERS)
            if (given := given_to(module, use.node)) is not None
        ]


class _UncompiledSearch(CodeSearch):
    """Stops where an array is made or computed with on the default device, and leaves compiled functions alone."""

    def __init__(self, flow: ValueFlow, home: ModuleUses, arrays: PossibleArrays) -> None:
        super().__init__(flow, home, hides_in_objects=False)
        self._arrays = arrays

    def _look_at(self, code: EnteredCode, part: ast.AST) -> None:
        is_problem = self._arrays.computes(code.module, part, code.frame)
        if isinstance(part, ast.Call) and not is_problem:
            name = library_name(code.module, part.func) or ""
            # `values.extend(x)` goes through what it is given.
            is_extended = isinstance(part.func, ast.Attribute) and part.func.attr in ("extend", "extendleft")
            call = self._flow.call_at(code.module, part, code.frame)
            is_problem = self._arrays.call_computes("builtins.list" if is_extended else name, call)
        if is_problem:
            raise OutOfView(_computes(code.module, part))

    def _stop_at(self, code: EnteredCode, part: ast.AST, value: Value, *, is_handed_on: bool) -> None:
        name, path = f"{value.head}", value.path
        if name in MESHES and [step.kind for step in path].count(By.CALL) > 2:
            # What `mesh(function)` gives runs the function.
            raise OutOfView(self._told(code, part, value, f"calls `{ast.unparse(part)}`"))
        if is_compiled_for_mesh(value) or name in CONSTRAINTS:
            return
        line = self._place(code, part, value)
        text = ast.unparse(part.func if isinstance(part, ast.Call) else part)
        if name in COMPUTE and is_handed_on:
            raise OutOfView(_computes(code.module, part))
        if name in TRANSFORMS:
            if any(step.kind is By.CALL for step in path[1:]):
                raise OutOfView(
                    f"`{text}` on {line} is compiled for the default device, and under `jax.set_mesh` it would run on "
                    "the whole mesh; move its call out of the block"
                )
            return
        methods = [step.what for step in path if step.kind is By.ATTRIBUTE]
        is_harmless = _is_harmless(name) or (bool(methods) and methods[-1] in _HARMLESS_METHODS)
        if name.partition(".")[0] in ARRAY_LIBRARIES and not is_harmless:
            raise OutOfView(
                f"`{text}` on {line} runs on the default device, and under `jax.set_mesh` it would on the whole mesh; "
                "move it out of the block"
            )

    def _handed_on(self, code: EnteredCode, part: ast.AST, value: Value) -> Iterator[EnteredCode]:
        if not (is_compiled_for_mesh(value) or value.head in TRANSFORMS or value.bound is not None):
            yield from super()._handed_on(code, part, value)

    def _place(self, code: EnteredCode, part: ast.AST, value: Value) -> str:
        return f"line {getattr(part, 'lineno', value.line)} of {code.module.facts.path}"

    def _told(self, code: EnteredCode, part: ast.AST, value: Value, text: str) -> str:
        shown = text.partition("`")[2].rpartition("`")[0]
        line = self._place(code, part, value)
        return (
            f"what `{shown}` on {line} makes cannot be seen, and under `jax.set_mesh` it would land on the whole mesh"
        )


def suspension(context: MeshContext) -> str | None:
    """A `yield` or `await` that lets code out of view run while the mesh is in context, in words, else None."""
    for node in run_now(context.body):
        if isinstance(node, ast.Yield | ast.YieldFrom | ast.Await):
            word = "await" if isinstance(node, ast.Await) else "yield"
            return f"what runs at the `{word}` on line {node.lineno} of {context.module.facts.path} cannot be seen"
    return None


def _is_harmless(qualified: str) -> bool:
    is_assertion = qualified.startswith("chex.assert_")
    return is_assertion or any(qualified == name or qualified.startswith(f"{name}.") for name in _HARMLESS)


def _computes(module: ModuleUses, node: ast.AST) -> str:
    return (
        f"`{ast.unparse(node)}` on line {getattr(node, 'lineno', 1)} of {module.facts.path} may compute on the default "
        "device, and under `jax.set_mesh` it would on the whole mesh; move it out of the block"
    )
