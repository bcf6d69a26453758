"""The site of one hint: the facts from which a codemod decides, and the changes that it registers."""

from __future__ import annotations

import ast
import copy
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, NoReturn

from mmrewrite.codemod.array_methods import ARRAY_METHODS
from mmrewrite.codemod.fragment import Cut, Fragment, NotReproduced, without_cuts
from mmrewrite.codemod.imports import Imports
from mmrewrite.codemod.layout import hanging_unit, indentation, render_statement
from mmrewrite.codemod.refusal import SiteRefused
from mmrewrite.directives.arguments import whole_number
from mmrewrite.directives.collect import Argument, Hint
from mmrewrite.directives.vocabulary import closest, nearest
from mmrewrite.project.axis_names import given_names
from mmrewrite.project.facts import RUNTIME, Facts, Mesh
from mmrewrite.project.project import Project
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.brackets import expression_text
from mmrewrite.source.calls import CallForm, call_form
from mmrewrite.source.functions import function_around
from mmrewrite.source.names import Scope, dotted_name, numbered, root_of
from mmrewrite.source.spans import begins_its_line, blocks_of, first_line, span
from mmrewrite.source.text import quoted
from mmrewrite.values.flow import values_of

if TYPE_CHECKING:
    import libcst as cst


class HintMistake(Exception):
    """A hint does not fit the program, such as an axis that the mesh does not have; `fix` is what it may mean."""

    def __init__(self, message: str, start: int, length: int, fix: str | None = None) -> None:
        super().__init__(message)
        self.message, self.start, self.length, self.fix = message, start, length, fix


@dataclass(frozen=True, eq=False)
class Insert:
    """New lines above the one at `offset`; `text` has no indentation on its first line and no line ending.

    `above` is the statement that they go above, `below` the one that they go below. With `apart` they begin with a
    function of the module, which gets blank lines above it. `code` is the text before it was laid out.
    """

    offset: int
    text: str
    indent: str
    codemod: str
    hint: Hint
    above: ast.stmt | None = None
    below: ast.stmt | None = None
    apart: bool = False
    code: str = ""


@dataclass(eq=False)
class Draft:
    """The changes to one module, as codemods register them; `cuts` are in the order of the text."""

    facts: Facts
    project: Project
    cuts: tuple[Cut, ...]
    unit: str
    width: int
    axes: tuple[tuple[str, str | None], ...]
    fragments: dict[ast.stmt, Fragment] = field(default_factory=dict)
    inserts: list[Insert] = field(default_factory=list)
    indices: dict[ast.stmt, str] = field(default_factory=dict)
    tasks: set[str] = field(default_factory=set)
    tried: Counter[str] = field(default_factory=Counter)
    done: set[Hint] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    local_names: set[tuple[Scope, str]] = field(default_factory=set)
    second_names: dict[Mesh, str] = field(default_factory=dict)
    uses_runtime: bool = False

    def __post_init__(self) -> None:
        self.imports = Imports(self.facts, self.is_taken_by_stars)

    @cached_property
    def hanging(self) -> str:
        """The text by which the module indents lines in brackets."""
        return hanging_unit(self.facts)

    def is_taken_by_stars(self, name: str) -> bool:
        """Whether a star import gives a name another meaning than a new one would: see the project."""
        return self.project.is_taken_by_stars(self.facts, name)

    def checkpoint(self) -> Callable[[], None]:
        """A function that takes back what is registered from now on, but for fragments, which only are parsed."""
        kept = {name: copy.copy(getattr(self, name)) for name in _REGISTERED}
        imports = self.imports.checkpoint()

        def take_back() -> None:
            for name, value in kept.items():
                setattr(self, name, value)
            imports()
            done = {hint.reference for hint in self.done}
            for fragment in self.fragments.values():
                fragment.keep_only(done)

        return take_back


# What codemods add to a draft besides fragments and imports.
_REGISTERED = ("inserts", "indices", "tasks", "tried", "done", "names", "local_names", "second_names", "uses_runtime")


class Site:
    """The place of one hint. Everything that a codemod decides, it decides from here."""

    def __init__(self, draft: Draft, hint: Hint, codemod: str) -> None:
        self.draft, self.hint, self.codemod = draft, hint, codemod
        self.facts, self.project = draft.facts, draft.project
        self.statement = hint.statement
        self.scope = draft.facts.scope_of(hint.statement)

    # Facts

    def resolve(self, node: ast.expr, scope: Scope | None = None) -> str | None:
        """Full name of an expression, such as `jax.jit`, else None; refuses what the program has put in its place."""
        name = self.facts.names.resolve(node, scope or self.scope)
        for where in self._rebound(root_of(node), name) if name is not None else ():
            self.refuse(
                f"`{name}` may be something else here: {where} replaces it; give the replacement a name of its own, "
                "and use that where it is meant",
                node if hasattr(node, "lineno") else None,
            )
        return name

    def _rebound(self, head: ast.AST, name: str) -> Iterator[str]:
        """Where the program sets something of a library, or, by its text, the name of this module that leads to it."""
        flow, own = values_of(self.project), head.id if isinstance(head, ast.Name) else ""
        for each in flow.set_elsewhere(flow.uses_of(self.facts), own, name):
            yield self.place(each.module.facts.path, each.node.lineno)

    def call_form(self, call: ast.Call) -> CallForm:
        """A call in normal form, read through every `partial`."""
        return call_form(self.facts.names, call, self.scope)

    def place(self, path: str, line: int) -> str:
        """A line, with its file where that is another one, in a message about this site."""
        return f"line {line}" + (f" of {PurePath(path).name}" if path != self.facts.path else "")

    def text(self, node: ast.expr | ast.stmt) -> str:
        """The source of a node without the hints that go; that of an expression can be written in brackets."""
        start, end = span(self.facts.source, node)
        text = without_cuts(self.facts.source, start, end, self.draft.cuts)
        return expression_text(text) if isinstance(node, ast.expr) else text

    def unindented(self, text: str, statement: ast.stmt) -> str:
        """Text of a statement for use in a new one, whose lines are indented again; refuses strings over several
        lines."""
        header = [child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt)]
        for node in (each for part in header for each in ast.walk(part)):
            is_text = isinstance(node, ast.JoinedStr) or (
                isinstance(node, ast.Constant) and isinstance(node.value, str)
            )
            if isinstance(node, ast.expr) and is_text and node.end_lineno != node.lineno:
                self.refuse("a string over several lines; assign it to a name above the loop", statement)
        lines = text.replace(self.facts.source.newline, "\n")
        return lines.replace(f"\n{indentation(self.facts.source, statement)}", "\n")

    def function(self) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The function that the statement runs in."""
        return function_around(self.facts.names, self.statement)

    def is_type_checking_only(self) -> bool:
        """Whether the statement is under `TYPE_CHECKING`, so that it never runs."""
        for holder in self.facts.names.around(self.statement):
            if isinstance(holder, ast.If):
                found = self.facts.names.resolve(holder.test, self.facts.scope_of(holder))
                if found in ("typing.TYPE_CHECKING", "typing_extensions.TYPE_CHECKING"):
                    return True
        return False

    def written_by_text(self) -> ast.Name | None:
        """What may bind any name of this module by its text: an `exec` in its namespace, or `globals()`."""
        flow = values_of(self.project)
        module = flow.uses_of(self.facts)
        for place in flow.stores.written_by_text.get(module, ()):
            is_local = place.node.id == "exec" and _is_local(module.parents[place.node], self.facts, module)
            if place.names is None and not is_local:
                return place.node
        return None

    # Refusals and mistakes

    def refuse(self, reason: str, node: ast.expr | ast.stmt | None = None) -> NoReturn:
        """Leave the whole site alone and give the user the reason, a sentence.

        Raises:
            SiteRefused: Always.
        """
        place = self.statement if node is None else node
        line, column = self.facts.source.position(span(self.facts.source, place)[0])
        star = self.facts.names.unclear_star
        if star is not None:
            reason += f" (`{ast.unparse(star)}` on line {star.lineno} hides what names mean; import them by name)"
        raise SiteRefused(reason, line, column)

    def error(self, message: str, argument: Argument | None = None) -> NoReturn:
        """Report a mistake in the hint itself, or in one of its arguments.

        Raises:
            HintMistake: Always.
        """
        if argument is None:
            raise HintMistake(message, self.hint.start, self.hint.end - self.hint.start)
        raise HintMistake(message, argument.start, len(argument.text))

    def misspelt(self, message: str, argument: Argument | None, word: str, known: Collection[str]) -> NoReturn:
        """Report a word of an argument that is none of those `known`.

        Raises:
            HintMistake: Always; it fixes the word if that is the whole argument.
        """
        if argument is None:
            self.error(message)
        close = closest(word, known)
        is_whole = isinstance(argument.value, ast.Constant) and argument.value.value == word
        fix = quoted(close) if close is not None and is_whole else None
        raise HintMistake(message, argument.start, len(argument.text), fix)

    def refuse_configured(self, definition: ast.FunctionDef | ast.ClassDef) -> None:
        """Refuse if a decorator registers a definition, as gin does: the registry would get the rewritten one."""
        for decorator in definition.decorator_list:
            function = decorator.func if isinstance(decorator, ast.Call) else decorator
            dotted = dotted_name(function) or ""
            found = self.resolve(function) or dotted
            if found.startswith("gin.") or dotted.rpartition(".")[2].startswith("register"):
                self.refuse(
                    f"`@{self.text(decorator)}` keeps hold of `{definition.name}` and may call it in another way; hint "
                    "the statement that calls it",
                    decorator,
                )

    # Names for generated code

    @property
    def line(self) -> int:
        """The line above which a name must be bound to be usable here, also in a function: lines below may call it."""
        return self.statement.lineno

    @property
    def runtime(self) -> str:
        """The runtime's module, normally `mm`."""
        self.draft.uses_runtime = True
        return self._reserved_runtime()

    def _reserved_runtime(self) -> str:
        return self.module(RUNTIME, "mm")

    def module(self, module: str, alias: str | None = None) -> str:
        """A module under the name that the file has for it; without any it is imported, as `alias` if that is free."""
        return self.draft.imports.module(module, alias or module, self.scope, self.line)

    @property
    def partial(self) -> str:
        """`functools.partial` under the name that the module has for it."""
        found = self.draft.imports.existing("functools.partial", self.scope, self.line)
        return found or f"{self.module('functools')}.partial"

    @property
    def partition_spec(self) -> str:
        """`jax.sharding.PartitionSpec` under the name that the module has for it."""
        return self._part("jax.sharding", "PartitionSpec", "P", "PartitionSpec", "JaxPartitionSpec")

    @property
    def named_scope(self) -> str:
        """`jax.named_scope` under the name that the module has for it."""
        return self._part("jax", "named_scope", "named_scope", "jax_named_scope")

    @property
    def any_type(self) -> str:
        """`typing.Any` under the name that the module has for it."""
        return self._part("typing", "Any", "Any", "AnyType")

    def _part(self, module: str, name: str, *aliases: str) -> str:
        return self.draft.imports.part(module, name, aliases, self.scope, self.line)

    def loop_index(self, loop: ast.For, *candidates: str) -> str:
        """A name for the index of `loop` that the function does not use, but for loops beside this one."""
        scope = self.scope.function if self.scope.kind != "class" else self.scope
        nested = {
            name
            for other, name in self.draft.indices.items()
            if loop in self.facts.names.around(other) or other in self.facts.names.around(loop)
        }
        taken = nested | {name for owner, name in self.draft.local_names if owner is scope}
        names = itertools.chain(candidates[:-1], numbered(candidates[-1]))
        self.draft.indices[loop] = next(name for name in names if scope.is_free(name) and name not in taken)
        return self.draft.indices[loop]

    def task_name(self, name: str) -> str:
        """A task name that no other statement of the module has."""
        for candidate in numbered(name, self.draft.tried[name]):
            self.draft.tried[name] += 1
            if candidate not in self.draft.tasks:
                self.draft.tasks.add(candidate)
                return candidate
        raise AssertionError

    def new_name(self, name: str) -> str:
        """A free name at module level: `name`, or `name_1` and so on if that is taken."""
        taken = self.facts.names.identifiers | self.draft.names
        free = (candidate for candidate in numbered(name) if candidate not in taken)
        chosen = next(candidate for candidate in free if not self.draft.is_taken_by_stars(candidate))
        self.draft.names.add(chosen)
        return chosen

    def local_name(self, name: str) -> str:
        """A free name in the scope of the statement: `name`, or `name_1` and so on if that is taken."""
        taken = {chosen for owner, chosen in self.draft.local_names if owner is self.scope}
        taken.update(self.draft.indices.values())
        chosen = next(each for each in numbered(name) if self.scope.is_free(each) and each not in taken)
        self.draft.local_names.add((self.scope, chosen))
        return chosen

    # Changes

    def fragment(self, statement: ast.stmt) -> Fragment:
        """The parsed text of a statement, or of its header. Refuses the site if LibCST cannot reproduce it."""
        if statement not in self.draft.fragments:
            try:
                self.draft.fragments[statement] = Fragment.parse(self.facts.source, statement, self.draft.cuts)
            except NotReproduced as problem:
                self.refuse(str(problem), statement)
        return self.draft.fragments[statement]

    def call(self, statement: ast.stmt, wanted: ast.Call) -> cst.Call:
        """The LibCST node for a call in a simple statement, which `ast` has as `wanted`."""
        try:
            return self.fragment(statement).call(wanted)
        except NotReproduced as problem:
            self.refuse(f"{problem}; give what it makes a name in a statement of its own", statement)

    def lambda_node(self, statement: ast.stmt, wanted: ast.Lambda) -> cst.Lambda:
        """The LibCST node for a `lambda` in a simple statement, which `ast` has as `wanted`."""
        try:
            return self.fragment(statement).lambda_node(wanted)
        except NotReproduced as problem:
            self.refuse(f"{problem}; write it as a `def`", statement)

    def transform(self, statement: ast.stmt, codemod: cst.CSTTransformer) -> None:
        """Let `codemod` visit a statement, or its header, once every site is decided."""
        fragment = self.fragment(statement)
        # Rendering looks for the name of the runtime, after all sites are decided.
        self._reserved_runtime()
        if codemod not in fragment.codemods:
            fragment.codemods.append(codemod)
            fragment.hints.append(self.hint.reference)
            fragment.names.append(self.codemod)

    def insert_above(self, code: str, statement: ast.stmt | None = None, *, apart: bool = False) -> None:
        """Insert a statement above `statement`, or in the place of the hint."""
        source = self.facts.source
        target = statement or self.statement
        if not begins_its_line(source, target):
            self.refuse("a new statement must go above this one; give it a line of its own", target)
        line = first_line(target) if statement is not None else self._line_of(self.hint)
        self._insert(source.line_starts[line - 1], code, indentation(source, target), above=target, apart=apart)

    def insert_below(self, code: str, statement: ast.stmt, *, apart: bool = False) -> None:
        """Insert a statement below `statement`, which ends its line."""
        source = self.facts.source
        end = source.line_end(statement.end_lineno or statement.lineno)
        self._insert(end, code, indentation(source, statement), below=statement, apart=apart)

    def wrap_block(self, first: str | None, last: str, below: str, loop: ast.For) -> None:
        """Insert statements at the beginning and at the end of a loop's block, and one below the loop.

        Comments at the end of the block stay in it.
        """
        source, indent = self.facts.source, indentation(self.facts.source, loop)
        inner = indentation(source, loop.body[0])
        if first is not None:
            line, _ = source.position(self.fragment(loop).end)
            self._insert(source.line_end(line), first, inner, above=loop.body[0])
        end = line = loop.end_lineno or loop.lineno
        while line < len(source.line_starts):
            line += 1
            text = source.line(line).strip()
            if text.startswith("#") and len(source.line(line).rstrip()) - len(text) > len(indent):
                end = line
            elif text:
                break
        offset, before = source.line_end(end), len(self.draft.inserts)
        self._insert(offset, last, inner, below=loop.body[-1])
        for _ in range(1 if indent else 2):
            self.draft.inserts.append(Insert(offset, "", "", self.codemod, self.hint))
        self._insert(offset, below, indent, below=loop)
        # Insertions at the same offset for the next statement, or for one around this loop, go below these.
        around = set(self.facts.names.around(loop))
        later = (
            k
            for k, other in enumerate(self.draft.inserts[:before])
            if other.offset == offset and (other.above is not None or other.hint.statement in around)
        )
        position, new = next(later, before), self.draft.inserts[before:]
        self.draft.inserts[before:] = []
        self.draft.inserts[position:position] = new

    def insert_with(self, code: str, other: Hint, *, apart: bool = False) -> None:
        """Insert a statement where another hint inserted its own, after that."""
        source = self.facts.source
        line = self._line_of(other)
        self._insert(
            source.line_starts[line - 1], code, indentation(source, other.statement), above=other.statement, apart=apart
        )

    def _line_of(self, hint: Hint) -> int:
        """The line above which a statement in the place of a hint goes.

        Hints that stay above it are about the next statement, so the new one must not come in between.
        """
        source = self.facts.source
        if not hint.own_line:
            return first_line(hint.statement)
        line, _ = source.position(hint.carrier_start)
        for holder in self.facts.hints.comments:
            comment = holder.comment
            is_above = comment.own_line and comment.line < line
            if is_above and any(other.statement is hint.statement for other in holder.hints):
                stays = not any(cut.start <= comment.start < cut.end for cut in self.draft.cuts)
                line = comment.line if stays else line
        return line

    def insert_blank_above(self, statement: ast.stmt) -> None:
        """Insert the blank lines above a statement, and above its comments, that a `def` in its place would have."""
        source, line = self.facts.source, statement.lineno
        while line > 1 and source.line(line - 1).lstrip().startswith("#"):
            line -= 1
        blank = 0
        while line - blank > 1 and not source.line(line - blank - 1).strip():
            blank += 1
        holder = self.facts.names.parents.get(statement)
        if holder is None or not any(block[0] is statement for block in blocks_of(holder)):
            for _ in range((2 if holder is None else 1) - blank):
                self.draft.inserts.append(Insert(source.line_starts[line - 1], "", "", self.codemod, self.hint))

    def _insert(
        self,
        offset: int,
        code: str,
        indent: str,
        *,
        above: ast.stmt | None = None,
        below: ast.stmt | None = None,
        apart: bool = False,
    ) -> None:
        text = render_statement(
            code, indent, self.facts.source.newline, self._reserved_runtime(), self.draft.width, self.draft.hanging
        )
        self.draft.inserts.append(Insert(offset, text, indent, self.codemod, self.hint, above, below, apart, code))

    # Meshes

    def own_mesh(self) -> Mesh:
        """The mesh that this hint declares."""
        return next(mesh for mesh in self.facts.meshes if mesh.hint is self.hint)

    def ready_mesh(self, scopes: Collection[Scope]) -> Mesh | None:
        """The first mesh of the module in some scopes that is there, or that a hint makes which is rewritten."""
        meshes = (mesh for mesh in self.facts.meshes if mesh.scope in scopes)
        return next((mesh for mesh in meshes if mesh.hint is None or mesh.hint in self.draft.done), None)

    def known_meshes(self) -> list[Mesh]:
        """The meshes of the module, else those of the modules around it, whose axes can be seen."""
        known = [mesh for mesh in self.facts.meshes if mesh.axes is not None]
        if not known:
            around = self.project.connected(self.facts)
            known = [mesh for facts in around for mesh in facts.meshes if mesh.axes is not None]
        return known

    def check_axis(self, axis: str, start: int, length: int) -> None:
        """Report a mistake in the hint if the mesh is known and has no such axis."""
        known = self.known_meshes()
        axes = {name for mesh in known for name in mesh.axes or ()}
        if len(known) >= 1 and axis not in axes:
            message = f"the mesh has no axis `{axis}`{nearest(axis, axes)}"
            raise HintMistake(message, start, length, closest(axis, axes))

    def axis_sizes(self, axis: str) -> list[int]:
        """The sizes that an axis has in the known meshes; none if one of them computes it."""
        sizes = [mesh.sizes.get(axis) for mesh in self.known_meshes() if axis in (mesh.axes or ())]
        written = [size for size in sizes if size is not None]
        return written if len(written) == len(sizes) else []

    def check_slice(self, arguments: Sequence[tuple[str, Argument]]) -> None:
        """Report a mistake in the hint if it names an axis, or a slice of one, that the mesh does not have."""
        for axis, argument in arguments:
            # Hints keep the place of an argument's value only; its name is the text before that, but for a name
            # in letters of another shape, which Python reads as these.
            found = self.facts.source.text.rfind(axis, 0, argument.start)
            start = found if found >= 0 else argument.start
            self.check_axis(axis, start, len(axis))
            index, sizes = whole_number(argument.value), self.axis_sizes(axis)
            if index is None or not sizes:
                continue
            if not 0 <= index < max(sizes):
                last = max(sizes) - 1
                self.error(
                    f"the mesh has no slice {index} of axis `{axis}`, which has {last + 1}: "
                    + (f"write 0 to {last}" if last else "write 0"),
                    argument,
                )

    def check_logical_names(self, arguments: Iterable[Argument]) -> None:
        """Report logical names in the hint that are not among those of the project, where these are written out."""
        if self.hint.implied:
            return
        known = given_names(self.project, self.facts, self.draft.axes)
        for argument in arguments:
            for node in _parts(argument.value) if known else ():
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in known:
                    self.misspelt(
                        f"`axes` has no logical name `{node.value}`{nearest(node.value, known)}. For a dimension that "
                        f"is replicated on purpose write `None` here, or map it to None in `axes`",
                        argument,
                        node.value,
                        known,
                    )

    # Helpers of several codemods

    def slice_text(self, arguments: Sequence[tuple[str, Argument]]) -> str:
        """`{"stage": 0}` for `stage=0`."""
        return "{" + ", ".join(f'"{axis}": {argument.text}' for axis, argument in arguments) + "}"

    def calls(self, node: ast.AST) -> Iterator[ast.Call]:
        """Calls in an expression or statement, but for those in lambdas, which run later, and in f-strings.

        Before Python 3.12 (PEP 701) a quote cannot be nested in an f-string, so a call with arguments in quotes would
        not parse there.
        """
        if isinstance(node, ast.Lambda | ast.JoinedStr):
            return
        if isinstance(node, ast.Call):
            yield node
        for child in ast.iter_child_nodes(node):
            yield from self.calls(child)

    def is_library(self, node: ast.expr) -> bool:
        """Whether an expression is part of a library: neither a local value nor part of the project.

        Methods of arrays count as such: in `f(x).astype(dtype)` the hint is about `f`.
        """
        if isinstance(node, ast.Attribute) and node.attr in ARRAY_METHODS:
            return True
        dotted = dotted_name(node)
        found = self.facts.names.resolve_dotted(dotted, self.scope) if dotted else None
        if found is None:
            return False
        return found.startswith("builtins.") or self.project.definition(found, self.facts) is None


def _parts(layout: ast.expr) -> Iterator[ast.expr]:
    """The entries of a literal layout; those of a tuple inside share one dimension."""
    if isinstance(layout, ast.Tuple | ast.List):
        for item in layout.elts:
            yield from _parts(item)
    else:
        yield layout


def _is_local(call: ast.AST, facts: Facts, module: ModuleUses) -> bool:
    """Whether an `exec` binds names of a namespace of its own, or of a function, and none that it declares `global`."""
    match call:
        case ast.Call(args=[_, _, *_] as arguments):
            return not all(map(_is_globals, arguments[1:]))
        case ast.Call(args=[ast.Constant(value=text)]):
            return "global" not in str(text) and module.scope_of(call) is not facts.names.scope
        case _:
            return False


def _is_globals(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("globals", "locals")
