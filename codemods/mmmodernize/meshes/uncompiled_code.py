"""Code in a mesh context outside compiled functions, and whether `jax.set_mesh` would change where its arrays land.

`with mesh:` only gave `pjit` its mesh; everything else ran on the default device. Under `jax.set_mesh` new arrays are
placed on all devices of the mesh: https://docs.jax.dev/en/latest/_autosummary/jax.set_mesh.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cached_property

from mmmodernize.calls.called_back import COMPUTE, Definition, called_back, first_computed
from mmmodernize.calls.handed_functions import HandedFunctions
from mmmodernize.calls.reach import WideReach
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
from mmmodernize.names.old_names import CONSTRAINTS, MESHES, PARTIALS, PJIT, RESOURCE_ENVS
from mmmodernize.types.array_annotations import ArrayAnnotations
from mmmodernize.types.array_sources import ArraySources
from mmmodernize.types.attribute_values import AttributeValues
from mmmodernize.types.libraries import ARRAY_LIBRARIES, is_known, library_name
from mmmodernize.types.possible_arrays import PossibleArrays
from mmrewrite.codemod.array_methods import ARRAY_METHODS
from mmrewrite.project.facts import Facts
from mmrewrite.project.reach import Reached
from mmrewrite.project.uses import ModuleUses

_TRACERS = frozenset(
    (
        "jax.jit",
        *PJIT,
        "jax.pmap",
        "mmruntime.compat.pmap",
        "jax.vmap",
        "jax.grad",
        "jax.value_and_grad",
        "jax.checkpoint",
    )
)

# Functions that trace what they are given, too, and compile nothing.
_TRACERS_OF_SHAPES = frozenset(
    ("jax.eval_shape", "jax.make_jaxpr", "jax.jacfwd", "jax.jacrev", "jax.jvp", "jax.linearize", "jax.remat", "jax.vjp")
)

# These make no array, or put it where an argument says.
_HARMLESS = (
    "jax.block_until_ready",
    "jax.config",
    "jax.debug",
    "jax.device_count",
    "jax.device_get",
    "jax.device_put",
    "jax.devices",
    "jax.distributed",
    "jax.eval_shape",
    *SPECS,
    *MESHES,
    "jax.experimental.mesh_utils",
    "jax.experimental.multihost_utils",
    "jax.experimental.pjit",
    "jax.interpreters.pxla",
    "jax.local_device_count",
    "jax.local_devices",
    "jax.make_array_from_callback",
    "jax.make_array_from_process_local_data",
    "jax.make_array_from_single_device_arrays",
    "jax.process_count",
    "jax.process_index",
    "jax.profiler",
    "jax.sharding",
    "jax.ShapeDtypeStruct",
    "jax.tree",
    "jax.tree_util",
    "jax.jit",
    "flax.core",
    "flax.jax_utils.prefetch_to_device",
    *(
        f"flax.linen.{module}{name}"
        for module in ("", "partitioning.", "spmd.")
        for name in (
            "axis_rules",
            "get_axis_names",
            "get_logical_axis_rules",
            "logical_axis_rules",
            "logical_to_mesh",
            "logical_to_mesh_axes",
            "logical_to_mesh_sharding",
        )
    ),
    "flax.serialization",
    "flax.traverse_util",
    "mmruntime.compat",
)
# fmt: off
HARMLESS_METHODS = frozenset(
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


class UncompiledCode:
    """Searches the code that a mesh context runs."""

    def __init__(self, modules: Mapping[str, ModuleUses], reach: WideReach, handed: HandedFunctions) -> None:
        self._modules, self._reach, self._handed = modules, reach, handed
        self._by_facts = {id(module.facts): module for module in modules.values()}
        self._others: dict[int, ModuleUses] = {}
        annotations = ArrayAnnotations(reach.project, self._uses_of)
        attributes = AttributeValues(self._by_facts)
        sources = ArraySources(
            reach.project, annotations, attributes, self._uses_of, self._definitions, self._is_on_the_mesh
        )
        self._arrays = PossibleArrays(sources)

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
            if any(node.attr == "__exit__" for node in module.nodes_of(ast.Attribute)):
                return "the mesh is entered and left by hand; write `with mesh:`"
        if context.kind == ENVIRONMENT and self.environment_mesh(context) is None:
            return "only `ResourceEnv(mesh, ...)` can be put in context; write `with mesh:`"
        if context.kind == ENTERED and context.outlasts:
            return "the stack that holds the mesh may outlive this function; write `with mesh:`"
        if context.kind == ENTERED and not isinstance(holder, ast.Expr):
            return "the value of `enter_context(mesh)` is used, and `jax.set_mesh(mesh)` gives None; use `mesh` itself"
        if any(holder in self._traced for holder in module.above(context.node)):
            return "this runs inside a compiled function, where `jax.set_mesh` is not allowed"
        method = next((holder for holder in module.above(context.node) if isinstance(holder, ast.FunctionDef)), None)
        if method is not None and method.name == "__call__" and self._traces_objects is not None:
            return f"{self._traces_objects} may trace this object, and `jax.set_mesh` is not allowed in a trace"
        if (suspension := _suspension(context)) is not None:
            return f"{suspension}, and under `jax.set_mesh` what it makes would land on the whole mesh"
        return self._problem_in(module, context.body, set())

    def run_by(self, context: MeshContext) -> Set[ast.AST]:
        """The statements of a context without a problem, and the definitions that they run outside of `pjit`."""
        seen: set[ast.AST] = {*context.body}
        self._problem_in(context.module, context.body, seen)
        return seen

    def suspension(self, context: MeshContext) -> str | None:
        """A `yield` or `await` that lets code out of view run while the mesh is in context, in words, else None."""
        return _suspension(context)

    def environment_mesh(self, context: MeshContext) -> ast.expr | None:
        """The mesh of `thread_resources.env = ResourceEnv(mesh, ())`, None for other environments."""
        value = context.node
        if not isinstance(value, ast.Call):
            return None
        made = context.module.facts.names.resolve(value.func, context.module.scope_of(value))
        given = [*value.args[:1], *(word.value for word in value.keywords if word.arg == "physical_mesh")]
        is_seen = made in RESOURCE_ENVS and len(given) == 1 and not isinstance(given[0], ast.Starred)
        return given[0] if is_seen else None

    @cached_property
    def _traced(self) -> frozenset[ast.AST]:
        """The functions that JAX traces."""
        return frozenset(self._traced_functions())

    @cached_property
    def _traces_objects(self) -> str | None:
        """A place where JAX may trace an object of a class of the project as a function, in words for a message."""
        for module in self._modules.values():
            for call in module.nodes_of(ast.Call):
                assert isinstance(call, ast.Call)
                made = module.facts.names.resolve(call.func, module.scope_of(call)) or ""
                if made in _TRACERS or made in _TRACERS_OF_SHAPES:
                    for argument in call.args[:1]:
                        if not self._is_no_object(module, argument):
                            return f"line {call.lineno} of {module.facts.path}"
        return None

    def _is_no_object(self, module: ModuleUses, function: ast.expr) -> bool:
        """Whether a function is seen to be a definition, a method or of a library, and no object with `__call__`."""
        names, scope = module.facts.names, module.scope_of(function)
        if isinstance(function, ast.Lambda):
            return True
        if isinstance(function, ast.Call):
            made = names.resolve(function.func, scope) or ""
            is_of_another = made in PARTIALS or made in _TRACERS
            return is_of_another and bool(function.args) and self._is_no_object(module, function.args[0])
        binding = names.binding(function.id, scope) if isinstance(function, ast.Name) else None
        if binding is not None and binding.kind != "import":
            if isinstance(binding.node, ast.FunctionDef):
                return True
            return binding.value is not None and self._is_no_object(module, binding.value)
        found = library_name(module, function)
        if found is not None and is_known(found):
            return True
        definitions = list(self._definitions(module, function))
        return bool(definitions) and all(isinstance(reached.node, ast.FunctionDef) for reached in definitions)

    def _traced_functions(self) -> Iterator[ast.AST]:
        for module in self._modules.values():
            names = module.facts.names
            for function in module.nodes_of(ast.FunctionDef):
                if any(self._is_tracer(module, decorator) for decorator in function.decorator_list):
                    yield from self._with_callees(module, function)
            for call in module.nodes_of(ast.Call):
                if names.resolve(call.func, module.scope_of(call)) in _TRACERS:
                    for argument in call.args[:1]:
                        yield from self._with_callees(module, argument)

    def _with_callees(self, module: ModuleUses, node: ast.AST) -> Iterator[ast.AST]:
        if isinstance(node, ast.Name):
            binding = module.facts.names.binding(node.id, module.scope_of(node))
            if binding is not None and binding.kind == "function":
                yield binding.node
        elif isinstance(node, ast.Lambda | ast.FunctionDef):
            yield node

    def _is_tracer(self, module: ModuleUses, decorator: ast.expr) -> bool:
        names, scope = module.facts.names, module.scope_of(decorator)
        if isinstance(decorator, ast.Call):
            if names.resolve(decorator.func, scope) in PARTIALS and decorator.args:
                return self._is_tracer(module, decorator.args[0])
            decorator = decorator.func
        return names.resolve(decorator, scope) in _TRACERS

    def _problem_in(self, module: ModuleUses, nodes: Iterable[ast.AST], seen: set[ast.AST]) -> str | None:
        for node in run_now(nodes):
            problem = None
            if isinstance(node, ast.Call):
                problem = self._problem_of_call(module, node, seen)
            elif isinstance(node, ast.expr | ast.stmt) and self._arrays.computes(module, node):
                problem = _computes(module, node)
            if problem is not None:
                return problem
        return None

    def _problem_of_call(self, module: ModuleUses, call: ast.Call, seen: set[ast.AST]) -> str | None:
        function, args, keywords = call.func, call.args, call.keywords
        while isinstance(function, ast.Call) and self._is_partial(module, function):
            partial = function
            function = partial.args[0]
            args, keywords = [*partial.args[1:], *args], [*partial.keywords, *keywords]
        if isinstance(function, ast.Attribute) and function.attr == "lower" and (args or keywords):
            # What is lowered is compiled for the mesh in context. Texts have a method of this name without arguments.
            function = function.value
        for each, skip in called_back(module, function, args, keywords):
            problem = self._problem_of_callback(module, each, seen, skip)
            if problem is not None:
                return problem
        if self._arrays.call_computes(module, function, [*args, *(keyword.value for keyword in keywords)]):
            return _computes(module, call)
        return self._problem_of_function(module, function, seen)

    def _is_partial(self, module: ModuleUses, call: ast.Call) -> bool:
        return bool(call.args) and module.facts.names.resolve(call.func, module.scope_of(call)) in PARTIALS

    def _problem_of_callback(self, module: ModuleUses, function: ast.expr, seen: set[ast.AST], skip: int) -> str | None:
        """The problem of calling a function with what may be arrays, but for the first `skip` arguments."""
        if isinstance(function, ast.Starred):
            return _unseen(module, function)
        while isinstance(function, ast.Call) and self._is_partial(module, function):
            function, skip = function.args[0], 0
        if isinstance(function, ast.Call) and not self._is_tracer(module, function.func):
            return _unseen(module, function)
        if library_name(module, function) in COMPUTE:
            return _computes(module, function)
        for other, definition in self._functions(module, function):
            found = first_computed(other, definition, self._functions, skip)
            if found is not None:
                return _computes(*found)
        if isinstance(function, ast.Lambda):
            return self._problem_in(module, [function.body], seen)
        return self._problem_of_function(module, function, seen)

    def _functions(self, module: ModuleUses, function: ast.expr) -> Iterator[tuple[ModuleUses, Definition]]:
        """The functions of the project that an expression may be, of which none is compiled; of classes `__init__`."""
        if isinstance(function, ast.Lambda):
            yield module, function
        for reached in self._definitions(module, function):
            other = self._by_facts.get(id(reached.facts)) or ModuleUses(reached.facts)
            node = _initializer(reached.node) if isinstance(reached.node, ast.ClassDef) else reached.node
            if isinstance(node, ast.FunctionDef) and not any(
                self._is_tracer(other, each) for each in node.decorator_list
            ):
                yield other, node

    def _problem_of_function(self, module: ModuleUses, function: ast.expr, seen: set[ast.AST]) -> str | None:
        """The problem of calling a function."""
        if isinstance(function, ast.Lambda):
            found_at = first_computed(module, function, self._functions)
            return _computes(*found_at) if found_at is not None else self._problem_in(module, [function.body], seen)
        line = f"line {function.lineno} of {module.facts.path}"
        text = ast.unparse(function)
        if isinstance(function, ast.Call):
            return self._problem_of_made(module, function, text, line, seen)
        found = library_name(module, function)
        if found is not None:
            root = found.partition(".")[0]
            if found in CONSTRAINTS or _is_harmless(found):
                return None
            if root in ARRAY_LIBRARIES:
                return (
                    f"`{text}` on {line} runs on the default device, and under `jax.set_mesh` it would on the whole "
                    "mesh; move it out of the block"
                )
        definitions = list(self._definitions(module, function))
        for reached in definitions:
            problem = self._problem_of_definition(reached, text, line, seen)
            if problem is not None:
                return problem
        if definitions or (found is not None and is_known(found)):
            return None
        if isinstance(function, ast.Attribute):
            owner = function.value
            if function.attr in HARMLESS_METHODS or self._is_host(module, owner):
                return None
            if function.attr.startswith("assert") and isinstance(owner, ast.Name) and owner.id == "self":
                # Assertions of `unittest` and of those that extend it keep nothing.
                return None
            if function.attr in ARRAY_METHODS and self._is_of_the_mesh(module, owner):
                return None
        return _unseen(module, function)

    def _problem_of_made(
        self, module: ModuleUses, function: ast.Call, text: str, line: str, seen: set[ast.AST]
    ) -> str | None:
        """The problem of calling what a call gives."""
        if self._is_partial(module, function):
            return self._problem_of_function(module, function.args[0], seen)
        if isinstance(function.func, ast.Attribute) and function.func.attr in ("lower", "compile"):
            # What is lowered is called for itself.
            return self._problem_of_function(module, function.func.value, seen)
        found = library_name(module, function.func)
        is_looked_up = found == "builtins.getattr"
        if found is not None and is_known(found) and not is_looked_up and not self._is_tracer(module, function.func):
            # What this library makes is said of its own call.
            return None
        return self._problem_of_value(module, function, text, line)

    def _is_host(self, module: ModuleUses, node: ast.expr, depth: int = 0) -> bool:
        """Whether a value does not come from JAX, but from another library, from Python, or a literal."""
        if isinstance(node, ast.Constant | ast.JoinedStr):
            return True
        if isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
            return self._is_host(module, node.value, depth)
        if isinstance(node, ast.Call):
            found = library_name(module, node.func)
            if found is not None:
                return is_known(found) and found.partition(".")[0] not in ARRAY_LIBRARIES
            return isinstance(node.func, ast.Attribute) and self._is_host(module, node.func.value, depth)
        if isinstance(node, ast.Name) and depth < 5:
            owner = module.scope_of(node).owner(node.id)
            values = [binding.value for binding in owner.bindings[node.id]] if owner is not None else []
            return bool(values) and all(value and self._is_host(module, value, depth + 1) for value in values)
        return False

    def _is_of_the_mesh(self, module: ModuleUses, node: ast.expr) -> bool:
        """Whether a value is the result of a function compiled with specs, so that its methods run where it is."""
        if not isinstance(node, ast.Name):
            return False
        binding = module.facts.names.binding(node.id, module.scope_of(node))
        made = binding.statement.value if binding is not None and isinstance(binding.statement, ast.Assign) else None
        if not isinstance(made, ast.Call):
            return False
        functions = list(self._definitions(module, made.func))
        return bool(functions) and all(
            isinstance(found.node, ast.Assign) and self._is_made_by_pjit(found) for found in functions
        )

    def _uses_of(self, facts: Facts) -> ModuleUses:
        """The uses of names in a module, also in one that may not change."""
        found = self._by_facts.get(id(facts))
        if found is None:
            found = self._others.get(id(facts))
        if found is None:
            found = self._others[id(facts)] = ModuleUses(facts)
        return found

    def _is_on_the_mesh(self, reached: Reached) -> bool:
        """Whether what a function gives lies on the mesh, as `pjit` compiles it."""
        node = reached.node
        if isinstance(node, ast.FunctionDef):
            module = self._uses_of(reached.facts)
            compiled = [decorator for decorator in node.decorator_list if self._is_tracer(module, decorator)]
            return bool(compiled) and self._is_pjit(module, compiled[-1])
        return isinstance(node, ast.Assign) and self._is_made_by_pjit(reached)

    def _is_made_by_pjit(self, reached: Reached) -> bool:
        module = self._by_facts.get(id(reached.facts))
        assert isinstance(reached.node, ast.Assign)
        return module is not None and self._problem_of_value(module, reached.node.value, "", "") is None

    def _definitions(self, module: ModuleUses, function: ast.expr) -> Iterator[Reached]:
        if isinstance(function, ast.Name):
            owner = module.scope_of(function).owner(function.id)
            for binding in owner.bindings[function.id] if owner is not None else ():
                if binding.kind == "import":
                    continue
                if binding.kind == "parameter" or binding.statement is None:
                    return
                yield Reached(module.facts, binding.statement)
        if isinstance(function, ast.Name | ast.Attribute):
            found = module.facts.names.resolve(function, module.scope_of(function))
            definition = self._reach.project.definition(found, module.facts) if found else None
            if definition is not None and definition[1].statement is not None:
                yield Reached(definition[0], definition[1].statement)
            elif isinstance(function, ast.Attribute) and found is None:
                yield from self._reach.members.get(function.attr, ())

    def _problem_of_definition(self, reached: Reached, text: str, line: str, seen: set[ast.AST]) -> str | None:
        node, module = reached.node, self._by_facts.get(id(reached.facts))
        if node in seen:
            return None
        seen.add(node)
        if module is None:
            module = ModuleUses(reached.facts)
        if isinstance(node, ast.FunctionDef):
            compiled = [decorator for decorator in node.decorator_list if self._is_tracer(module, decorator)]
            if compiled:
                return None if self._is_pjit(module, compiled[-1]) else _plain(text, line)
            return self._problem_in(module, node.body, seen)
        if isinstance(node, ast.ClassDef):
            made = _initializer(node)
            return self._problem_in(module, made.body, seen) if made is not None else None
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            if isinstance(node, ast.Assign) and _is_lowered_again(node):
                return None
            return self._problem_of_value(module, node.value, text, line)
        return None

    def _problem_of_value(self, module: ModuleUses, value: ast.expr, text: str, line: str) -> str | None:
        """The problem of calling a name with this value: none if it is a function compiled with specs of its own."""
        while isinstance(value, ast.Call | ast.Attribute):
            if self._is_pjit(module, value):
                return None
            if isinstance(value, ast.Call) and self._is_tracer(module, value.func):
                return _plain(text, line)
            value = value.func if isinstance(value, ast.Call) else value.value
        if isinstance(value, ast.Name):
            binding = module.facts.names.binding(value.id, module.scope_of(value))
            if binding is not None and binding.value is not None:
                return self._problem_of_value(module, binding.value, text, line)
            if binding is not None and binding.kind == "parameter":
                problems = [
                    self._problem_of_value(*place, text, line) for place in self._handed.values_of(module, value) or ()
                ]
                if problems:
                    return next((problem for problem in problems if problem is not None), None)
        return _unseen_text(text, line)

    def _is_pjit(self, module: ModuleUses, node: ast.expr) -> bool:
        names, scope = module.facts.names, module.scope_of(node)
        if isinstance(node, ast.Call):
            if names.resolve(node.func, scope) in PARTIALS and node.args:
                return self._is_pjit(module, node.args[0])
            if names.resolve(node.func, scope) == "jax.jit":
                return any(keyword.arg in ("in_shardings", "out_shardings") for keyword in node.keywords)
            node = node.func
        return names.resolve(node, scope) in PJIT


def _is_harmless(qualified: str) -> bool:
    is_assertion = qualified.startswith("chex.assert_")
    return is_assertion or any(qualified == name or qualified.startswith(f"{name}.") for name in _HARMLESS)


def _is_lowered_again(statement: ast.Assign) -> bool:
    """Whether a name gets what its own value is compiled to, such as `step = step.lower(x).compile()`."""
    value: ast.expr = statement.value
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr not in ("lower", "compile"):
            return False
        value = value.func.value
    targets = [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return isinstance(value, ast.Name) and value is not statement.value and targets == [value.id]


def _plain(text: str, line: str) -> str:
    return (
        f"`{text}` on {line} is compiled for the default device, and under `jax.set_mesh` it would run on the whole "
        "mesh; move its call out of the block"
    )


def _suspension(context: MeshContext) -> str | None:
    """A `yield` or `await` that lets code out of view run while the mesh is in context, else None."""
    for node in run_now(context.body):
        if isinstance(node, ast.Yield | ast.YieldFrom | ast.Await):
            word = "await" if isinstance(node, ast.Await) else "yield"
            return f"what runs at the `{word}` on line {node.lineno} of {context.module.facts.path} cannot be seen"
    return None


def _initializer(definition: ast.ClassDef) -> ast.FunctionDef | None:
    functions = (part for part in definition.body if isinstance(part, ast.FunctionDef))
    return next((part for part in functions if part.name == "__init__"), None)


def _unseen(module: ModuleUses, function: ast.expr) -> str:
    return _unseen_text(ast.unparse(function), f"line {function.lineno} of {module.facts.path}")


def _unseen_text(text: str, line: str) -> str:
    return f"what `{text}` on {line} makes cannot be seen, and under `jax.set_mesh` it would land on the whole mesh"


def _computes(module: ModuleUses, node: ast.expr | ast.stmt) -> str:
    return (
        f"`{ast.unparse(node)}` on line {node.lineno} of {module.facts.path} may compute on the default device, and "
        "under `jax.set_mesh` it would on the whole mesh; move it out of the block"
    )
