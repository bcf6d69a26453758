"""Compile a step for the whole mesh, so that its tasks run on their slices.

    step = jax.jit(step, donate_argnums=0)  # mm: mjit
    ->  step = mm.mjit(step, mesh=mesh, donate_argnums=0)

`nnx.jit`, `eqx.filter_jit`, `eqx.filter_pmap` and `jax.pmap` are replaced likewise, as `like=nnx.jit` and so on, and
so is an expression that is one of these or `jax.jit` in every case. Their callers see no difference.

To check: the step is called with the arguments that it was called with before, and nothing else relies on it being a
plain `jax.jit`.

Refused: devices among the arguments, because the mesh decides them; `hk.jit` and `nn.jit`; a step without a mesh.
Reported: what plain `jax.jit` compiles, where tasks are inlined, although it reaches a task or calls the model of a
`TrainState`. This is not said of functions that only steps for the mesh call, nor of those that make modules and call
none. Also a mesh without a compiled step, or on which no hint places anything; tasks without a mesh in files that are
named one by one; an import of a file with hints that is not among those to rewrite; and calls that stop a step when it
runs, as they ask for a mesh in context or for devices, such as `out_sharding=P("data")`, or for axes of a mesh of the
program's own that `axes` does not map. Where `jax.pmap` is replaced, uses of Flax's `unreplicate` that are no plain
calls, too. And what computes with a step's result under a mesh with explicit axes that the program sets in view.
What else runs outside of steps on arrays of several stages, or computes with what steps return under another mesh, or
makes a step a part of its own, as `jax.grad(step)` does, the runtime says when it runs.
See https://docs.jax.dev/en/latest/_autosummary/jax.jit.html for what is compiled.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Collection, Iterator, Sequence

import libcst as cst

from mmrewrite.analysis.meshes.mesh_requests import mesh_requests
from mmrewrite.analysis.meshes.set_meshes import on_other_meshes
from mmrewrite.analysis.meshes.step_mesh import mesh_expression
from mmrewrite.analysis.steps.compilers import carried
from mmrewrite.analysis.steps.constructions import only_makes_modules
from mmrewrite.analysis.steps.jit_calls import jit_call, jit_decorator
from mmrewrite.analysis.steps.plain_steps import PlainStep, is_initialiser, is_left, plain_steps, reached_by_values
from mmrewrite.codemod.base import MeshCodemod, behind, expression, has_comments
from mmrewrite.codemod.refusal import SiteRefused
from mmrewrite.directives.collect import Hint
from mmrewrite.directives.vocabulary import DEF, DIRECTIVES, STATEMENT, Role
from mmrewrite.project.axis_names import UNREPLICATE, compiles_pmap, declared_names
from mmrewrite.project.facts import RUNTIME, Facts
from mmrewrite.project.project import Project, imported_names
from mmrewrite.project.reach import Reach, Reached, VisibleReach, holds
from mmrewrite.project.uses import ModuleUses
from mmrewrite.results import Refusal
from mmrewrite.source.calls import call_form
from mmrewrite.source.functions import own_expressions
from mmrewrite.source.spans import first_line, span
from mmrewrite.values.flow import ValueFlow, values_of
from mmrewrite.values.uses import uses_of

_HINT = "write `# mm: mjit` where it is compiled, or `# mm: ignore[compile_for_mesh]` if it is to run there"

_COPIES = (
    "`unreplicate` of Flax takes what the first device holds, and after a step for the mesh that is not one copy: all "
    "copies of a value lie on the devices of its stage; write `jax.tree.map(lambda x: x[0], tree)` for "
    "`unreplicate(tree)`"
)

# Roles of directives that use an axis of a mesh, and words of code that may do so by itself.
_USES = frozenset((Role.PLACE, Role.LAYOUT, Role.AXES))
_SHARDS = re.compile(rf"{RUNTIME}|shard|partition|axis_rules|pmap|pjit|xmap", re.IGNORECASE)
_UNUSED = (
    "no hint of these files places anything on a part of this mesh, so each of its devices would run the whole "
    "step: write `# mm: stages` above the loop over the layers, or `# mm: task({axis}=0)` on the statement that "
    "calls one; if these are in another file, give that file too"
)


class CompileForMesh(MeshCodemod):
    """Replaces `jax.jit` by `mm.mjit`, as a call or as a decorator."""

    directive = "mjit"
    kinds = frozenset((STATEMENT, DEF))
    run_after = ("declare_mesh",)

    def rewrite(self) -> None:
        """Find the `jax.jit` and the mesh."""
        statement = self.site.statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            found = jit_decorator(self.site, statement)
            if found is None:
                reason = "`mjit` replaces `jax.jit`, and this function has no such decorator; add `@jax.jit`"
                self.refuse("; and ".join((reason, *self._without_mesh())))
            self.position, used, keywords = found
            self.arguments = carried(self.site, used, keywords, statement.decorator_list[self.position])
        else:
            jit = jit_call(self.site, self.directive)
            self.arguments = carried(self.site, jit.compiler, jit.keywords, jit.call)
            self.target = self.site.call(statement, jit.call)
        self.arguments = {"mesh": mesh_expression(self.site), **self.arguments}
        self.site.transform(statement, self)

    def _without_mesh(self) -> Iterator[str]:
        """Why the step has no mesh, if it has none, to be said along with what else is in the way."""
        try:
            mesh_expression(self.site)
        except SiteRefused as refused:
            yield refused.reason

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """`jax.jit(step, ...)` becomes `mm.mjit(step, mesh=mesh, ...)`."""
        if isinstance(self.site.statement, ast.FunctionDef | ast.AsyncFunctionDef) or original_node is not self.target:
            return updated_node
        wrapper, given = f"{self.site.runtime}.mjit", updated_node.args
        function = next((each for each in given if each.keyword and each.keyword.value == "fun"), given[0])
        if has_comments(updated_node) and function.keyword is None:
            return self.with_options(updated_node.with_changes(func=expression(wrapper)))
        return self.generated(wrapper, function.value, **self.arguments)

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        """`@jax.jit` becomes `@functools.partial(mm.mjit, mesh=mesh)`."""
        decorators = list(updated_node.decorators)
        old, wrapper = decorators[self.position].decorator, f"{self.site.runtime}.mjit"
        call = self.generated(self.site.partial, wrapper, **self.arguments)
        if isinstance(old, cst.Call) and has_comments(old) and old.args and old.args[0].keyword is None:
            function = old.args[0].with_changes(value=expression(wrapper))
            call = self.with_options(call.with_changes(args=[function, *old.args[1:]]))
        decorators[self.position] = decorators[self.position].with_changes(decorator=call)
        return updated_node.with_changes(decorators=decorators)

    def with_options(self, call: cst.Call) -> cst.Call:
        """The call with the mesh behind its function, and with its options where they stand, as there are comments."""
        function, *old = call.args
        kept = [each for each in old if each.keyword is not None and self._is_same(each)]
        names = {each.keyword.value for each in kept if each.keyword is not None}
        new = {name: text for name, text in self.arguments.items() if name not in names}
        return call.with_changes(args=[*behind(function, self.generated("f", **new).args), *kept])

    def _is_same(self, option: cst.Arg) -> bool:
        """Whether an option is one of the new call, with the same value."""
        text = self.arguments.get(option.keyword.value) if option.keyword is not None else None
        code = cst.Module([]).code_for_node(option.value)
        return text is not None and ast.dump(ast.parse(f"({text}\n)")) == ast.dump(ast.parse(f"({code}\n)"))

    @classmethod
    def review(cls, project: Project, reach: Reach, modules: Sequence[Facts]) -> Iterator[Refusal]:
        """Parts of the program without which the rest does not run on the mesh."""
        yield from _steps_for_one_device(project, modules)
        yield from _meshes_without_step(project, modules)
        yield from _meshes_without_use(project, modules)
        yield from _tasks_without_mesh(project, modules)
        yield from _files_not_given(project, modules)
        yield from _mesh_requests(project, modules, declared_names(modules, project.axes))
        yield from _copies_taken_by_device(project, modules)
        for found in on_other_meshes(project, modules):
            if not is_left(found.facts, found.statement, "compile_for_mesh"):
                yield Refusal(found.facts.path, *found.position, found.reason, "compile_for_mesh")


def _mesh_requests(project: Project, modules: Sequence[Facts], logical: Collection[str]) -> Iterator[Refusal]:
    """What would stop a step when it runs, as it asks for the program's own mesh or devices."""
    for found in mesh_requests(project, modules, logical):
        path, (line, column), reason = found.facts.path, found.position, found.reason
        if found.facts not in modules:
            facts, hint = found.by
            reason = f"what this leads to stops it, at {path}:{line}:{column}: {reason}"
            path, line, column = facts.path, hint.reference.line, hint.reference.column
        yield Refusal(path, line, column, reason, "compile_for_mesh")


def _copies_taken_by_device(project: Project, modules: Sequence[Facts]) -> Iterator[Refusal]:
    """Flax's `unreplicate` where it is no call that is rewritten, and a `jax.pmap` becomes a step for the mesh."""
    hints = ((facts, hint) for facts in modules for hint in facts.hints.hints)
    step = next((each for each in hints if compiles_pmap(*each)), None)
    if step is None:
        return
    for facts in project.imported_by(modules).values():
        rewritten = [hint.call.func for hint in facts.hints.implied if hint.call is not None]
        uses = [
            facts.source.position(span(facts.source, node)[0])
            for statement, scope in facts.names.scopes.items()
            for node in own_expressions(statement)
            if isinstance(node, ast.Name | ast.Attribute)
            and facts.names.resolve(node, scope) == UNREPLICATE
            and node not in rewritten
            and not is_left(facts, statement, "compile_for_mesh")
        ]
        if not uses:
            continue
        (line, column), *others = sorted(uses)
        more = ", ".join(str(other) for other, _ in others)
        reason = f"{_COPIES}{f', on lines {more} as well' * bool(others)}"
        if facts in modules:
            yield Refusal(facts.path, line, column, reason, "compile_for_mesh")
        else:
            place = step[1].reference
            reason = f"at {facts.path}:{line}:{column}: {reason}"
            yield Refusal(step[0].path, place.line, place.column, reason, "compile_for_mesh")


def _steps_for_one_device(project: Project, modules: Sequence[Facts]) -> Iterator[Refusal]:
    """Steps that reach a task and are compiled by plain `jax.jit`, but not as a part of a step for the mesh."""
    tasks = [(facts, hint.statement) for facts in modules for hint in facts.hints.hints if hint.record.places_code]
    if not tasks:
        return
    # A value that a step gets from the function around it leads to all that this function compiles.
    visible = VisibleReach(project)
    steps = [
        item
        for facts in modules
        for hint in facts.hints.hints
        if hint.record.role is Role.COMPILE
        for item in visible.from_node(facts, hint.statement)
    ]
    for facts in modules:
        hinted = {hint.statement for hint in facts.hints.hints if hint.record.role is Role.COMPILE}
        for step in plain_steps(project, facts, hinted, "compile_for_mesh"):
            if _only_initializes(project, visible, step, tasks):
                continue
            if _is_part_of(steps, values_of(project), step):
                continue
            reached = list(step.reached(visible))
            if not any(holds(item, where, task) for item in reached for where, task in tasks):
                reached = list(reached_by_values(project, step))
            if any(holds(item, where, task) for item in reached for where, task in tasks):
                if only_makes_modules(project, step, tasks):
                    continue
                reason = (
                    f"{step.name} reaches a task, and plain `jax.jit` would inline it: all of it runs where its "
                    f"arguments are; {_HINT}"
                )
            else:
                model = next((name for item in reached for name in _models_in(item.node)), None)
                if model is None:
                    continue
                reason = (
                    f"{step.name} calls `{model}`, and if that is the model with the tasks, plain `jax.jit` would "
                    f"inline them: all of it runs where its arguments are; {_HINT}"
                )
            line, column = step.position
            yield Refusal(facts.path, line, column, reason, "compile_for_mesh")


def _compiled(step: PlainStep) -> ast.AST:
    """The function of a step, also behind a `partial`, or the expression that it is."""
    names, argument = step.facts.names, step.argument
    scope = names.scopes[step.statement]
    form = call_form(names, argument, scope) if isinstance(argument, ast.Call) else None
    if form is not None and not form.is_called:
        named = form.function
        binding = names.binding(named.id, scope) if isinstance(named, ast.Name) else None
        if binding is not None and isinstance(binding.node, ast.FunctionDef):
            return binding.node
    return argument or step.statement


def _only_initializes(project: Project, reach: Reach, step: PlainStep, tasks: Sequence[tuple[Facts, ast.stmt]]) -> bool:
    """Whether a step makes parameters, `model.init(...)`, and applies nothing: the first step moves them."""
    flow, facts = values_of(project), step.facts
    module = flow.uses_of(facts)
    called = [node.func for node in ast.walk(_compiled(step)) if isinstance(node, ast.Call)]
    others = [each for each in called if not is_initialiser(project, facts, each)]
    applied = {each.attr for each in called if isinstance(each, ast.Attribute)} & {
        "apply",
        "apply_fn",
        "init_with_output",
    }
    if applied or len(others) == len(called):
        return False
    reached = (
        item
        for each in others
        if flow.class_at(module, each) is None
        for item in reach.from_expression(facts, each, module.scope_of(each))
    )
    return not any(holds(item, where, task) for item in reached for where, task in tasks)


def _models_in(node: ast.AST) -> Iterator[str]:
    """Calls of a model that a Flax `TrainState` carries: `state.apply_fn`."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "apply_fn":
            yield ast.unparse(each.func)


def _meshes_without_step(project: Project, modules: Sequence[Facts]) -> Iterator[Refusal]:
    """Meshes of a run in which nothing is compiled for a mesh."""
    if any(facts.hints.errors or _compiles(facts) for facts in (*modules, *project.imported_by(modules).values())):
        return
    meshes = [
        (facts, hint)
        for facts in modules
        for hint in facts.hints.hints
        if hint.record.role is Role.MESH and hint not in project.withheld
    ]
    steps = list(_steps_with_hints(project, modules)) if meshes else []
    for facts, hint in meshes:
        if len(steps) == 1:
            advice = _above_the_step(steps[0], facts, hint)
        else:
            advice = (
                "where `jax.jit` compiles the step; if that is in another file, give that file too; if the step is no "
                "function yet, make it one, with `@jax.jit`"
            )
        reason = f"no step is compiled for this mesh, so nothing would run on it: write `# mm: mjit` {advice}"
        yield Refusal(facts.path, hint.reference.line, hint.reference.column, reason, "compile_for_mesh")


def _meshes_without_use(project: Project, modules: Sequence[Facts]) -> Iterator[Refusal]:
    """Meshes of a run in which nothing is placed or sharded: each of their devices would run the whole step.

    Any other way to use a mesh, which no hint shows, has one of the words or the name of an axis in its source.
    """
    files = (*modules, *project.imported_by(modules).values())
    hints = [hint for facts in files for hint in facts.hints.hints]
    left = [item.text.partition("(")[0] for facts in files for item in facts.hints.left]
    roles = {hint.record.role for hint in hints} | {DIRECTIVES[word].role for word in left if word in DIRECTIVES}
    if project.axes or any(facts.hints.errors for facts in files) or not roles.isdisjoint(_USES):
        return
    if not any(map(_compiles, files)) or any(_SHARDS.search(facts.source.text) for facts in files):
        return
    for facts in modules:
        for hint in facts.hints.hints:
            if hint.record.role is Role.MESH and hint.named:
                names = "|".join(re.escape(name) for name, _ in hint.named)
                if not any(re.search(rf"""["'](?:{names})["']""", other.source.text) for other in files):
                    reason = _UNUSED.format(axis=hint.named[0][0])
                    yield Refusal(facts.path, hint.reference.line, hint.reference.column, reason, "compile_for_mesh")


def _steps_with_hints(project: Project, modules: Sequence[Facts]) -> Iterator[PlainStep]:
    """What plain `jax.jit` compiles and leads to a hint for the mesh: one of them is the step that was meant."""
    roles = (Role.PLACE, Role.MICROBATCH)
    hinted = [(facts, hint.statement) for facts in modules for hint in facts.hints.hints if hint.record.role in roles]
    visible = VisibleReach(project)
    for facts in modules:
        for step in plain_steps(project, facts, set(), "compile_for_mesh"):
            reached = list(step.reached(visible))
            if any(holds(item, where, statement) for item in reached for where, statement in hinted):
                yield step


def _above_the_step(step: PlainStep, facts: Facts, mesh: Hint) -> str:
    """Where the hint for a step belongs, and the one for its mesh, if that is made too late."""
    line = first_line(step.compiled)
    where = f"above line {line}" if step.facts is facts else f"above line {line} of {step.facts.path}"
    advice = f"{where}, for the step {step.name}"
    scopes = facts.names.scopes
    runs_with_it = step.facts is facts and scopes[step.compiled] is scopes[mesh.statement]
    if runs_with_it and first_line(mesh.statement) > line:
        advice += f", and move this hint above that: line {line} runs before the mesh would be made"
    return advice


def _tasks_without_mesh(project: Project, modules: Sequence[Facts]) -> Iterator[Refusal]:
    """The first task of files that were named one by one, if none of them has a mesh or compiles for one."""
    if not project.by_name:
        return
    files = (*modules, *project.imported_by(modules).values())
    if any(facts.hints.errors or facts.hints.left or _compiles(facts) or _has_mesh(facts) for facts in files):
        return
    for facts in modules:
        for hint in facts.hints.hints:
            if hint.record.places_code and hint not in project.withheld:
                reason = (
                    "no file of this run has a mesh, so this is half of a program: tasks run where a step that is "
                    "compiled for a mesh calls them; give the files with `# mm: mesh(...)` and `# mm: mjit` too"
                )
                yield Refusal(facts.path, hint.reference.line, hint.reference.column, reason, "compile_for_mesh")
                return


def _has_mesh(facts: Facts) -> bool:
    """Whether a module makes a mesh, by a hint or with the runtime."""
    return RUNTIME in facts.source.text or any(hint.record.role is Role.MESH for hint in facts.hints.hints)


def _compiles(facts: Facts) -> bool:
    """Whether a module compiles something for a mesh, or would if its hints were not left alone."""
    words = [left.text.partition("(")[0] for left in facts.hints.left]
    words += [hint.directive for hint in facts.hints.hints]
    if any(word in DIRECTIVES and DIRECTIVES[word].role is Role.COMPILE for word in words):
        return True
    functions = {
        f"{RUNTIME}.{name}" for record in DIRECTIVES.values() if record.role is Role.COMPILE for name in record.runtime
    }
    return RUNTIME in facts.source.text and any(
        facts.names.resolve(node, scope) in functions
        for statement, scope in facts.names.scopes.items()
        for node in own_expressions(statement)
        if isinstance(node, ast.Name | ast.Attribute)
    )


def _files_not_given(project: Project, modules: Sequence[Facts]) -> Iterator[Refusal]:
    """Imports that lead to hints in files that are not among those to rewrite, each file once."""
    known = set(project.facts)
    for facts in modules:
        for statement in facts.names.scopes:
            for name in imported_names(statement, facts):
                module = project.module(name, facts) or project.module(name.rpartition(".")[0], facts)
                for other in sorted(_outside(project, module), key=lambda other: other.path):
                    if other.path in known or not (other.hints.errors or any(True for _ in other.hints.hints)):
                        continue
                    known.add(other.path)
                    # Files of the run are shown from the current folder, those that imports lead to in full.
                    folder, inside = posixpath.dirname(facts.file.place), posixpath.dirname(facts.path)
                    here = f"{folder}/".removesuffix(f"{inside}/" if inside else "")
                    reason = (
                        f"this leads to {other.path.removeprefix(here)}, which has hints and is not among the files to "
                        "rewrite, so its part of the program would stay on one device; give that file too"
                    )
                    yield Refusal(facts.path, statement.lineno, statement.col_offset + 1, reason, "compile_for_mesh")


def _outside(project: Project, start: Facts | None) -> list[Facts]:
    """A module and its transitive imports, as far as none of the files to rewrite lies between."""
    found: dict[str, Facts] = {}
    queue = [start] if start is not None else []
    while queue:
        facts = queue.pop()
        if facts.path not in found and facts.path not in project.facts:
            found[facts.path] = facts
            queue.extend(project.imported(facts))
    return list(found.values())


def _is_part_of(steps: Sequence[Reached], flow: ValueFlow, step: PlainStep) -> bool:
    """Whether a step is only called by steps for the mesh, as far as the project shows."""
    facts, module = step.facts, flow.uses_of(step.facts)
    if step.compiled is step.statement:
        return _is_called_in(steps, facts, step.statement) and not _is_called_outside(
            steps, flow, module, step.statement
        )
    if any(holds(item, facts, step.compiled) for item in steps):
        return True
    targets = step.compiled.targets if isinstance(step.compiled, ast.Assign) else ()
    names = [each for each in targets if isinstance(each, ast.Name)]
    reads = [read for each in names for read in module.heads_of(each.id, module.scope_of(each))]
    statements = [module.statement_of(read) for read in reads]
    return bool(reads) and all(any(holds(item, facts, each) for item in steps) for each in statements)


def _is_called_outside(steps: Sequence[Reached], flow: ValueFlow, module: ModuleUses, function: ast.stmt) -> bool:
    """Whether a function is called, or may be, where no step for the mesh leads: in an evaluation, for example."""
    if not isinstance(function, ast.FunctionDef) or module.facts.names.scopes[function].kind == "class":
        return False

    def is_outside(home: ModuleUses, node: ast.AST) -> bool:
        statement = home.statement_of(node)
        inside = statement is function or function in home.facts.names.around(statement)
        return not inside and not any(holds(item, home.facts, statement) for item in steps)

    used = uses_of(flow, module, function)
    calls = [(home, call.node) for call in used.calls for home in flow.modules if call.node in home.parents]
    escapes = [(place.module, place.node) for place, _ in used.escapes]
    return any(node is not None and is_outside(home, node) for home, node in (*calls, *escapes))


def _is_called_in(steps: Sequence[Reached], facts: Facts, function: ast.stmt) -> bool:
    """Whether a step for the mesh holds or calls a function: then the function's own `jax.jit` is part of that step."""
    holder = next(iter(facts.names.around(function)), None)
    if not any(holds(item, facts, function) for item in steps):
        return False
    if not isinstance(function, ast.FunctionDef) or not isinstance(holder, ast.ClassDef) or function.name == "__call__":
        return True
    # All methods of a class count as reached; this one only if some attribute has its name.
    nodes = (node for item in steps for node in ast.walk(item.node))
    return any(isinstance(node, ast.Attribute) and node.attr == function.name for node in nodes)
