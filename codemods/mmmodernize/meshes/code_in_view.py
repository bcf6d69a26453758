"""Whether all functions that some code calls, or hands on to be called, are in view."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from mmmodernize.meshes.uncompiled_code import HARMLESS_METHODS
from mmmodernize.types.libraries import is_known, library_name
from mmrewrite.codemod.array_methods import ARRAY_METHODS
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.uses import ModuleUses

# What libraries call functions by that they are given. Others of theirs call none.
_CALL_BACK = frozenset(
    (
        "apply", "associative_scan", "checkpoint", "cond", "custom_jvp", "custom_vjp", "debug_callback", "eval_shape",
        "filter", "fori_loop", "grad", "hessian", "io_callback", "jacfwd", "jacrev", "jit", "jvp", "linearize", "map",
        "map_with_path", "partial", "pjit", "pmap", "pure_callback", "reduce", "remat", "scan", "shard_map", "starmap",
        "switch", "tree_map", "tree_map_with_path", "tree_multimap", "value_and_grad", "vectorize", "vjp", "vmap",
        "while_loop",
    )
)  # fmt: skip
_FUNCTIONS = frozenset(("f", "fun", "func", "function", "body_fun", "cond_fun", "true_fun", "false_fun"))
# Their objects call whatever they were made with.
_OBJECTS = frozenset(("equinox", "flax", "haiku", "optax", "transformers"))


class CodeInView:
    """Follows calls through the project. Unlike the reach of a context, it says what it cannot follow."""

    def __init__(self, project: Project, modules: Mapping[str, ModuleUses]) -> None:
        self._project = project
        self._by_facts = {id(module.facts): module for module in modules.values()}

    def led_to(self, module: ModuleUses, nodes: Iterable[ast.AST]) -> set[ast.AST] | None:
        """The code itself and all definitions that it runs or hands on, None if it may run others."""
        queue = [(module, node) for node in nodes]
        seen: set[ast.AST] = set()
        while queue:
            module, node = queue.pop()
            if node in seen:
                continue
            seen.add(node)
            for part in ast.walk(node):
                if isinstance(part, ast.Call):
                    led = self._led_to(module, part)
                    if led is None:
                        return None
                    queue += led
                elif isinstance(part, ast.Yield | ast.YieldFrom | ast.Await):
                    return None
        return seen

    def _led_to(self, module: ModuleUses, call: ast.Call) -> list[tuple[ModuleUses, ast.AST]] | None:
        """The definitions that a call runs, None if it may run others."""
        function = call.func
        if isinstance(function, ast.Lambda):
            return []
        if isinstance(function, ast.Call):
            # What `pjit(f)` gives: `f` is seen at the inner call.
            made = library_name(module, function.func)
            return [] if made is not None and is_known(made) and _name_of(made) in _CALL_BACK else None
        found = library_name(module, function)
        if found is not None and is_known(found):
            if found.partition(".")[0] in _OBJECTS:
                return None
            if _name_of(found) not in _CALL_BACK:
                return []
            return self._handed_on(module, call)
        definition = self._definition(module, function)
        if definition is not None:
            return [definition]
        is_method = isinstance(function, ast.Attribute) and (
            function.attr in ARRAY_METHODS or function.attr in HARMLESS_METHODS
        )
        return [] if is_method and found is None else None

    def _handed_on(self, module: ModuleUses, call: ast.Call) -> list[tuple[ModuleUses, ast.AST]] | None:
        led: list[tuple[ModuleUses, ast.AST]] = []
        for value in _functions_in(call):
            if isinstance(value, ast.Lambda | ast.Call):
                continue
            found = library_name(module, value)
            if found is not None and is_known(found):
                continue
            definition = self._definition(module, value)
            if definition is None:
                return None
            led.append(definition)
        return led

    def _definition(self, module: ModuleUses, function: ast.expr) -> tuple[ModuleUses, ast.AST] | None:
        """The only definition of a function of the project."""
        scope = module.scope_of(function)
        if isinstance(function, ast.Name):
            binding = module.facts.names.binding(function.id, scope)
            if binding is not None and binding.kind == "function":
                return module, binding.node
        found = module.facts.names.resolve(function, scope)
        place = self._project.definition(found, module.facts) if found is not None else None
        if place is None or place[1].kind != "function":
            return None
        return self._module(place[0]), place[1].node

    def _module(self, facts: Facts) -> ModuleUses:
        if id(facts) not in self._by_facts:
            self._by_facts[id(facts)] = ModuleUses(facts)
        return self._by_facts[id(facts)]


def _name_of(qualified: str) -> str:
    return qualified.rpartition(".")[2]


def _functions_in(call: ast.Call) -> Iterator[ast.expr]:
    """The arguments that may be functions: the first one, names of functions, and all of `cond` and the like."""
    is_branching = isinstance(call.func, ast.Attribute | ast.Name) and (
        (call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id)
        in ("cond", "switch", "while_loop", "fori_loop")
    )
    yield from call.args if is_branching else call.args[:1]
    yield from (word.value for word in call.keywords if word.arg is None or word.arg in _FUNCTIONS)
