"""Run the code of all scopes that match a pattern as tasks; the model stays untouched.

    # mm: register(r"h_(\\d+)", stage="int({0}) // 3")
    ->  def place_h(match, backprop):
            return mm.Task(name=f"h_{match}", mesh_slice={"stage": int(match) // 3})
        mesh.register_task(r"h_(\\d+)", callback=place_h)

To check: the pattern matches the scopes that are meant, and no others.

Refused: a registration inside a function or a class, because it is made once, before anything is traced.
See https://docs.jax.dev/en/latest/_autosummary/jax.named_scope.html for scopes; Flax modules make one each.
"""

from __future__ import annotations

import ast
import builtins
import re
from typing import NoReturn

from mmcodemods._task import TaskCodemod
from mmrewrite.analysis.objects.annotations import is_annotated
from mmrewrite.codemod.site import HintMistake
from mmrewrite.directives.collect import Argument
from mmrewrite.directives.vocabulary import ANYWHERE, nearest
from mmrewrite.project.facts import Mesh
from mmrewrite.source.names import numbered

_FIELD = re.compile(r"\{(\d*)\}")
# A pattern with one group and plain text around it: its matches have names that can be written down.
_PLAIN = re.compile(r"([^()\[\]\\|]*)\([^()]*\)([^()\[\]\\|]*)")


class RegisterByName(TaskCodemod):
    """Writes the registration where the hint stands, or below the mesh when that is made later."""

    directive = "register"
    kinds = ANYWHERE
    run_after = ("declare_mesh",)

    @property
    def axes(self) -> list[tuple[str, Argument]]:
        """The slice: all named arguments but the pattern."""
        return [(name, argument) for name, argument in self.hint.named if name != "regex"]

    def rewrite(self) -> None:
        """Check the pattern and the slices, and write the registration."""
        if self.site.statement not in self.site.facts.tree.body:
            self.refuse("`register` is for the whole program; write it at module level, in the margin")
        regex = self.hint.arguments[0]
        groups = self.check_pattern(regex)
        self.site.check_slice(self.axes)
        match = next(name for name in numbered("match") if not any(name in argument.text for _, argument in self.axes))
        slices = {axis: self.slice_code(argument, match, groups) for axis, argument in self.axes}
        mesh_slice = "{" + ", ".join(f'"{axis}": {code}' for axis, code in slices.items()) + "}"
        runtime = self.site.runtime
        mesh = self.site.ready_mesh([self.site.facts.names.scope])
        call = f"{mesh.name if mesh else runtime}.register_task({regex.text}, "
        if not any(_FIELD.search(str(literal(argument))) for _, argument in self.axes):
            self.write(f"{call}task={runtime}.Task(mesh_slice={mesh_slice}))", mesh)
            return
        function = self.site.new_name(f"place_{slug(literal(regex)) or 'scope'}")
        task = f"{runtime}.Task({self.name_of_match(literal(regex), match)}mesh_slice={mesh_slice})"
        head = f"{function}({match}, backprop)"
        if is_annotated(self.site):
            head = f"{function}({match}: str, backprop: bool) -> {runtime}.Task"
        callback = f"def {head}:\n{self.site.draft.unit}return {task}"
        self.write(f"{callback}\n\n\n{call}callback={function})", mesh, apart=True)

    def check_pattern(self, argument: Argument) -> int | None:
        """The number of groups of the pattern; None if it is computed."""
        pattern = literal(argument)
        if not isinstance(pattern, str):
            return None
        if not pattern:
            self.site.error('an empty pattern matches nothing; name a scope: `register("encoder", stage=0)`', argument)
        try:
            groups = re.compile(pattern).groups
        except re.error as problem:
            self.wrong(f"this is no regular expression: {problem.msg}", argument, problem.pos or 0)
        if "(" in pattern and groups != 1:
            self.site.error(
                f"the pattern has {groups} capture groups; it needs one, the part of the name that `{{0}}` stands for. "
                "Write the others as `(?:...)`",
                argument,
            )
        return groups

    def slice_code(self, argument: Argument, match: str, groups: int | None) -> str:
        """The slice as an expression of the captured text."""
        template = literal(argument)
        if not isinstance(template, str):
            self.check_names(argument, argument.value)
            return argument.text
        for field in _FIELD.finditer(template):
            if field[1] != "0":
                self.wrong(
                    f"`{field[0]}` is no group; the one group of the pattern is `{{0}}`", argument, field.start()
                )
            if groups == 0:
                self.wrong(
                    "`{0}` is what a group of the pattern matched, and this pattern has none; put what differs in "
                    'parentheses: r"h_(\\d+)"',
                    argument,
                    field.start(),
                )
        code = _FIELD.sub(match, template)
        try:
            expression = ast.parse(code.strip(), mode="eval").body
        except (SyntaxError, ValueError) as problem:
            said = problem.msg if isinstance(problem, SyntaxError) else problem
            self.site.error(f"`{template}` is no expression: {said}; write one such as `int({{0}}) // 3`", argument)
        self.check_names(argument, expression, match)
        return code.strip()

    def check_names(self, argument: Argument, expression: ast.expr, *own: str) -> None:
        """Report names that the module lacks, since the registration is made at module level."""
        nodes = list(ast.walk(expression))
        bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        known = {*self.site.facts.names.scope.bindings, *own, *bound, *dir(builtins)}
        imports = [node for node in self.site.facts.tree.body if isinstance(node, ast.ImportFrom)]
        if any(alias.name == "*" for node in imports for alias in node.names):
            return
        for node in nodes:
            if isinstance(node, ast.Name) and node.id not in known:
                close = nearest(node.id, self.site.facts.names.scope.bindings)
                advice = close if close.startswith("; did") else "; write `{0}` for what the group matched"
                self.site.error(f"`{node.id}` is no name of this module{advice}", argument)

    def name_of_match(self, pattern: object, match: str) -> str:
        """`name=f"h_{match}", ` where the names of the matches follow from the pattern."""
        plain = _PLAIN.fullmatch(str(pattern))
        if plain is None:
            return f'name=f"{slug(pattern)}_{{{match}}}", ' if slug(pattern) else ""
        before, after = (re.sub(r"\W+", "", part) for part in plain.groups())
        return f'name=f"{before}{{{match}}}{after}", ' if before or after else ""

    def write(self, code: str, mesh: Mesh | None, *, apart: bool = False) -> None:
        """Put a statement where the hint stands, or below the mesh if that is made later."""
        if mesh is None or mesh.statement.lineno <= self.site.statement.lineno:
            self.site.insert_above(code, apart=apart)
        elif mesh.hint is None:
            self.site.insert_below(code, mesh.statement, apart=apart)
        else:
            self.site.insert_with(code, mesh.hint, apart=apart)

    def wrong(self, message: str, argument: Argument, position: int) -> NoReturn:
        """Report a mistake with the caret at a character of a string, if its source has no escapes."""
        text, value = argument.text, str(literal(argument))
        opening = text.find(value)
        if opening < 0:
            self.site.error(message, argument)
        raise HintMistake(message, argument.start + opening + position, 1)


def literal(argument: Argument) -> object:
    """The value of a literal argument, else None."""
    return argument.value.value if isinstance(argument.value, ast.Constant) else None


def slug(pattern: object) -> str:
    """The plain text of a pattern, as part of a name."""
    text = re.sub(r"\((?!\?:)[^()]*\)|\\.|\(\?:", "", pattern) if isinstance(pattern, str) else ""
    return re.sub(r"\W+", "_", text).strip("_").lower()
