"""Compile a step together with its initialiser and its input, whose results are made on the devices of the step.

    step = jax.jit(train)  # mm: parallelize(init_params=init, get_input_batch=load)
    ->  step, init, load = mm.parallelize(train, mesh=mesh, init_params=init, get_input_batch=load)

To check: the initialiser and the input function give the same values when they are traced as when they are called.

Refused: an initialiser that is used otherwise than by a call without arguments, since its name is rebound; an input
function whose batches differ, since it is traced once; a step with more arguments than parameters and a batch.
See https://docs.jax.dev/en/latest/_autosummary/jax.eval_shape.html for how their shapes are found.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

import libcst as cst

from mmrewrite.analysis.meshes.step_mesh import mesh_expression
from mmrewrite.analysis.steps.compilers import Compiler, carried
from mmrewrite.analysis.steps.jit_calls import jit_call, jit_decorator
from mmrewrite.codemod.base import MeshCodemod
from mmrewrite.directives.collect import Argument
from mmrewrite.directives.vocabulary import DEF, STATEMENT
from mmrewrite.source.functions import own_expressions, required_parameters, varies
from mmrewrite.source.names import Binding
from mmrewrite.source.spans import first_line


class ParallelizeStep(MeshCodemod):
    """Writes the assignment in place of `jax.jit`, or below the function."""

    directive = "parallelize"
    kinds = frozenset((STATEMENT, DEF))
    run_after = ("declare_mesh",)

    position: int | None = None

    def rewrite(self) -> None:
        """Find the compiled function, and check the names that are rebound."""
        statement = self.site.statement
        superseded = self.hint.record.supersedes
        beside = [hint.directive for hint in self.site.facts.hints.hints if hint.statement is statement]
        if superseded in beside:
            self.site.error(f"`{self.directive}` compiles the step; remove the `{superseded}` beside it")
        names = [self.checked(argument) for name, argument in self.hint.named if name in _NAMED]
        if self.site.scope.kind == "class":
            self.refuse("names of a class are looked up another way; write the step at module level or in a function")
        holders = self.site.facts.names.around(statement)
        if any(isinstance(holder, ast.For | ast.AsyncFor | ast.While) for holder in holders):
            self.refuse("a step that is compiled in a loop is planned anew in each iteration; move it above the loop")
        if isinstance(statement, ast.FunctionDef):
            step = self.of_function(statement)
        else:
            step = self.of_statement(statement)
        targets = ", ".join([step, *names])
        texts = {name: argument.text for name, argument in self.hint.named}
        self.arguments = {"mesh": mesh_expression(self.site), **texts}
        if isinstance(statement, ast.FunctionDef):
            call = ", ".join([step, *(f"{name}={text}" for name, text in self.arguments.items())])
            self.site.insert_below(f"{targets} = {self.site.runtime}.parallelize({call})", statement, apart=True)
        self.targets = targets
        if self.position is not None or not isinstance(statement, ast.FunctionDef):
            self.site.transform(statement, self)

    def of_function(self, function: ast.FunctionDef) -> str:
        """The step is this function; its `jax.jit` decorator goes."""
        found = jit_decorator(self.site, function)
        if found is not None:
            self.position = found[0]
        if self.position:
            above = function.decorator_list[0]
            self.refuse(
                "a decorator above `jax.jit` wraps the compiled step; move it below, or compile by a call", above
            )
        if found is not None:
            position, used, keywords = found
            self.check_options(used, keywords, function.decorator_list[position])
        self.check_step(function)
        return function.name

    def of_statement(self, statement: ast.stmt) -> str:
        """The step is the function that this statement compiles."""
        jit = jit_call(self.site, self.directive)
        if not isinstance(statement, ast.Assign) or statement.value is not jit.call or len(statement.targets) != 1:
            self.refuse("`parallelize` gives several names; write `step = jax.jit(...)` on a line of its own")
        (target,) = statement.targets
        if not isinstance(target, ast.Name):
            self.refuse("`parallelize` gives several names; assign the step to one name first", target)
        self.check_options(jit.compiler, jit.keywords, jit.call)
        binding = self.binding(jit.function)
        if binding is not None and isinstance(binding.node, ast.FunctionDef):
            self.check_step(binding.node)
        self.target = self.site.call(statement, jit.call)
        return target.id

    def check_options(self, used: Compiler, keywords: Sequence[ast.keyword], place: ast.expr) -> None:
        """Refuses options of `jax.jit`, since `parallelize` has none of them, and other functions that compile."""
        if not used.is_plain_jit:
            self.refuse(
                f"`parallelize` takes the place of `jax.jit` alone, and this is `{self.site.text(used.node)}`; write "
                "`mjit` in its place",
                place,
            )
        found = carried(self.site, used, keywords, place)
        if found:
            name = next(iter(found))
            self.refuse(f"`parallelize` has no `{name}=`; remove it, or write `mjit` in its place", place)

    def check_step(self, function: ast.FunctionDef) -> None:
        """Refuses a step with other arguments than parameters and a batch."""
        count = len(function.args.posonlyargs) + len(function.args.args)
        required = len(required_parameters(function))
        if not required <= 2 <= count and function.args.vararg is None:
            self.refuse(
                f"`parallelize` is for a step of parameters and a batch, and `{function.name}` takes {count} "
                "arguments; put them into these two, or write `mjit` in its place"
            )

    def checked(self, argument: Argument) -> str:
        """The name of an initialiser, after checks that its other uses keep their meaning."""
        node = argument.value
        if not isinstance(node, ast.Name):
            self.site.error(f"`{argument.name}=` is the name of a function: `{argument.name}=init`", argument)
        scope = self.site.scope
        binding = self.binding(node)
        if binding is None or binding.statement is None:
            self.refuse(f"`{node.id}` is bound more than once, or not here; give the function a name of its own")
        if scope.owner(node.id) is not scope:
            self.refuse(
                f"`{node.id}` belongs to another scope, and `parallelize` gives it a new value in this one; write the "
                f"step there as well, or give `{node.id}` another name here first"
            )
        if first_line(binding.statement) > first_line(self.site.statement):
            self.refuse(f"`{node.id}` is made on line {binding.statement.lineno}, below this step; move it up")
        self.check_function(argument, node.id, binding)
        self.check_uses(node.id)
        return node.id

    def check_function(self, argument: Argument, name: str, binding: Binding) -> None:
        """Refuses a function that cannot be called without arguments, or cannot be traced just once."""
        function = binding.node if isinstance(binding.node, ast.FunctionDef) else binding.value
        if not isinstance(function, ast.FunctionDef | ast.Lambda):
            return
        required = required_parameters(function)
        if required:
            self.refuse(
                f"`{name}` is called without arguments, and it needs `{required[0]}`; bind it: "
                f"`{name}_bound = functools.partial({name}, ...)`, and name that"
            )
        other = varies(self.site.facts.names, function)
        if other is not None and argument.name == "get_input_batch":
            self.refuse(
                f"`{name}` is traced once, and what line {other.lineno} gives differs from call to call: every "
                "batch would be the first one; give an example in its place, `initial_batch=batch`",
                other,
            )

    def check_uses(self, name: str) -> None:
        """Refuses uses of a rebound name other than calls without arguments."""
        facts, scope = self.site.facts, self.site.scope
        line = first_line(self.site.statement)
        for statement, inner in facts.names.scopes.items():
            if inner.owner(name) is not scope:
                continue
            nodes = list(own_expressions(statement))
            calls = [node.func for node in nodes if isinstance(node, ast.Call) and not node.args and not node.keywords]
            for node in nodes:
                is_use = isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
                # Uses that run before the assignment keep their meaning.
                if is_use and node not in calls and (statement.lineno > line or inner is not scope):
                    self.refuse(
                        f"`{name}` becomes an initialiser that places its result, and is used otherwise than as "
                        f"`{name}()`; use another name for one of them",
                        node if isinstance(node, ast.expr) else None,
                    )

    def binding(self, node: ast.expr) -> Binding | None:
        """The only binding of a name."""
        return self.site.facts.names.binding(node.id, self.site.scope) if isinstance(node, ast.Name) else None

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """`jax.jit(train)` becomes `mm.parallelize(train, ...)`."""
        if isinstance(self.site.statement, ast.FunctionDef) or original_node is not self.target:
            return updated_node
        return self.generated(f"{self.site.runtime}.parallelize", updated_node.args[0].value, **self.arguments)

    def leave_AssignTarget(self, original_node: cst.AssignTarget, updated_node: cst.AssignTarget) -> cst.AssignTarget:
        """`step` becomes `step, init, load`."""
        names = [cst.Element(cst.Name(name)) for name in self.targets.split(", ")]
        return updated_node.with_changes(target=cst.Tuple(names, lpar=[], rpar=[]))

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        """`@jax.jit` goes away."""
        # LibCST keeps the comments above a decorator on it, and those below the last one on the function.
        first, *rest = updated_node.decorators
        below = [*first.leading_lines, *updated_node.lines_after_decorators]
        return updated_node.with_changes(decorators=rest, lines_after_decorators=below)


_NAMED = ("init_params", "get_input_batch")
