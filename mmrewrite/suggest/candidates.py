"""Where hints may stand: wide and cheap, as the codemods decide."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mmrewrite.directives.vocabulary import DIRECTIVES, Role
from mmrewrite.source.names import last_name
from mmrewrite.source.spans import begins_its_line, first_line, span
from mmrewrite.source.text import SourceText, parse_quietly

_SIMPLE = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr | ast.Return
# Statements with less of the operations are not worth stages.
_LEAST = 0.2


@dataclass(frozen=True)
class LineOperations:
    """Equations of the step that are alike.

    Attributes:
        lines: The lines of the project that led to them, with their files.
        flops: Operations of each.
        count: How many there are.
        length: For a scan, how often its body runs.
        backward: Whether they are of a backward pass.
    """

    lines: frozenset[tuple[str, int]]
    flops: float
    count: int
    length: int
    backward: bool


@dataclass(frozen=True)
class LayerCandidate:
    """A statement that may run all layers.

    Attributes:
        path: Its file.
        line: Its first line.
        statement: It.
        share: Its part of all operations.
        iterations: How often its costliest operation is made in a forward pass; for a scan, its length.
    """

    path: str
    line: int
    statement: ast.stmt
    share: float
    iterations: int


@functools.lru_cache(maxsize=128)
def _tree(text: str) -> ast.Module:
    """The tree of a file, which is asked about again and again and stays as it is."""
    return parse_quietly(text)


@dataclass(frozen=True)
class HintSite:
    """Where a hint about a statement may stand.

    Attributes:
        line: The line that the statement begins on.
        around: Offsets of an expression that a call is written around; None for a comment above the statement.
    """

    line: int
    around: tuple[int, int] | None = None


def sites(source: SourceText, statement: ast.stmt, directive: str) -> Iterator[HintSite]:
    """Where a hint about a statement may stand: above it, else around one of its expressions."""
    if begins_its_line(source, statement):
        yield HintSite(first_line(statement))
        return
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    value = statement.value if isinstance(statement, ast.Assign | ast.Return) else None
    role = DIRECTIVES[directive].role
    wrapped: list[ast.expr | None] = [call.func if role is Role.MICROBATCH else call for call in calls]
    for node in [value] if role is Role.LAYOUT else wrapped:
        if node is not None and not isinstance(node, ast.Tuple):
            yield HintSite(statement.lineno, span(source, node))


def step_sites(source: SourceText, name: str) -> list[HintSite]:
    """Where the hint may stand that compiles the function `name` for a mesh, the likeliest first."""
    found: list[tuple[int, int, ast.stmt]] = []
    for statement in statements_of(source):
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        calls = [node for node in ast.walk(statement) if isinstance(statement, _SIMPLE) and isinstance(node, ast.Call)]
        if isinstance(statement, ast.FunctionDef) and statement.name == name and statement.decorator_list:
            found.append((1, first_line(statement), statement))
        elif calls and any(last_name(target) == name for target in targets):
            found.append((0, statement.lineno, statement))
        elif any(last_name(each) == name for call in calls for each in call.args):
            found.append((2, statement.lineno, statement))
    ordered = sorted(found, key=lambda each: each[:2])
    return [site for _, _, statement in ordered for site in sites(source, statement, "mjit")]


def imported_as(source: SourceText, name: str) -> Iterator[tuple[str, str]]:
    """The modules that a name may come from, with dots where it is a part of what is imported, and its names there."""
    for node in ast.walk(_tree(source.text)):
        module = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            head, part = alias.asname or alias.name, ""
            if name.startswith(f"{head}."):
                part = name[len(head) :]
                yield f"{module}{alias.name}".lstrip("."), part[1:]
            if module.strip(".") and (part or name == head):
                yield module[:-1], f"{alias.name}{part}"


def statements_of(source: SourceText) -> Iterator[ast.stmt]:
    """The statements of a file."""
    return (node for node in ast.walk(_tree(source.text)) if isinstance(node, ast.stmt))


def statements_at(source: SourceText, line: int) -> list[ast.stmt]:
    """The simple statements on a line, the innermost first."""
    around = [each for each in statements_of(source) if each.lineno <= line <= (each.end_lineno or each.lineno)]
    return [each for each in reversed(around) if isinstance(each, _SIMPLE)]


def compiled_at(source: SourceText, line: int) -> Iterator[HintSite]:
    """Where the hint may stand that compiles the function defined on a line, or what a simple statement there does."""
    for statement in statements_of(source):
        if isinstance(statement, ast.FunctionDef) and first_line(statement) <= line <= statement.lineno:
            compiled = [HintSite(first_line(statement))] if statement.decorator_list else []
            yield from compiled or step_sites(source, statement.name)
            return
    for statement in statements_at(source, line):
        yield from sites(source, statement, "mjit")


def top_line(source: SourceText, line: int) -> int:
    """The first line of the statement of the module that a line is in."""
    for statement in _tree(source.text).body:
        if first_line(statement) <= line <= (statement.end_lineno or statement.lineno):
            return first_line(statement)
    return line


def layer_candidates(
    sources: Mapping[str, SourceText], operations: Sequence[LineOperations]
) -> tuple[list[LayerCandidate], list[LayerCandidate]]:
    """Loops that Python runs twice or more, and other statements, each by their share of the operations."""
    total = sum(each.flops * each.count for each in operations) or 1.0
    by_line: dict[tuple[str, int], set[int]] = {}
    for number, each in enumerate(operations):
        for place in each.lines:
            by_line.setdefault(place, set()).add(number)
    loops, others = [], []
    for path, source in sources.items():
        for statement in statements_of(source):
            is_loop = isinstance(statement, ast.For)
            if not is_loop and not isinstance(statement, _SIMPLE):
                continue
            start = statement.body[0].lineno if isinstance(statement, ast.For) else statement.lineno
            lines = range(start, (statement.end_lineno or start) + 1)
            inside = [operations[k] for k in set[int]().union(*(by_line.get((path, line), ()) for line in lines))]
            share = sum(each.flops * each.count for each in inside) / total
            forward = [each for each in inside if not each.backward]
            if share < _LEAST or not forward:
                continue
            costliest = max(forward, key=lambda each: each.flops)
            iterations = costliest.count if is_loop else costliest.length
            found = LayerCandidate(path, statement.lineno, statement, share, iterations)
            if is_loop and iterations > 1:
                loops.append(found)
            elif not is_loop:
                others.append(found)

    def order(each: LayerCandidate) -> tuple[float, int, str, int]:
        span = (each.statement.end_lineno or each.line) - each.line
        return -round(each.share, 3), -span, each.path, each.line

    return sorted(loops, key=order), sorted(others, key=order)


def is_in_loop(source: SourceText, statement: ast.stmt) -> bool:
    """Whether a loop of the same function runs a statement again and again."""
    tree = _tree(source.text)
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For | ast.While):
            stack: list[ast.AST] = list(loop.body)
            while stack:
                node = stack.pop()
                if isinstance(node, ast.stmt) and node.lineno == statement.lineno:
                    return True
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                    stack.extend(ast.iter_child_nodes(node))
    return False


def mapped_sites(source: SourceText) -> Iterator[HintSite]:
    """Where the hint may stand about values that `jax.vmap` of something, or Equinox's, gives when it is called."""
    for statement in statements_of(source):
        value = statement.value if isinstance(statement, ast.Assign | ast.Return) else None
        made = value.func if isinstance(value, ast.Call) else None
        maker = made.func if isinstance(made, ast.Call) else None
        if last_name(maker) in ("vmap", "filter_vmap"):
            yield from sites(source, statement, "shard")


def parameter_hints(
    source: SourceText, gradient: ast.stmt, batch: Iterable[object], name: str
) -> Iterator[tuple[HintSite, str]]:
    """Functions that a gradient's statement names, and the hints that their batch has rows first."""
    names = {node.id for node in ast.walk(gradient) if isinstance(node, ast.Name)}
    for statement in statements_of(source):
        if isinstance(statement, ast.FunctionDef) and statement.name in names:
            parameters = [each.arg for each in (*statement.args.posonlyargs, *statement.args.args)]
            known = [parameters[k] for k in batch if isinstance(k, int) and k < len(parameters)]
            if known:
                layouts = (f'{each}=("{name}",)' for each in sorted(known))
                yield HintSite(first_line(statement)), f"shard({', '.join(layouts)})"


def row_hints(source: SourceText, layers: ast.stmt, name: str) -> Iterator[tuple[HintSite, str]]:
    """Statements whose value may have the rows of a batch first, and the hint that says so.

    Args:
        source: The file.
        layers: The statement that runs all layers in it.
        name: The logical name of rows.
    """
    valued: ast.stmt | None = layers
    if isinstance(layers, ast.For):
        last = layers.body[-1]
        is_one = isinstance(last, ast.Assign) and len(last.targets) == 1 and isinstance(last.targets[0], ast.Name)
        valued = last if is_one else None
    if valued is not None:
        yield from ((site, f'shard("{name}")') for site in sites(source, valued, "shard"))
    # The function that a scan runs, whose first parameter it carries.
    names = {node.id for node in ast.walk(layers) if isinstance(node, ast.Name)}
    for statement in statements_of(source):
        if isinstance(statement, ast.FunctionDef) and statement.name in names and statement.args.args:
            yield HintSite(first_line(statement)), f'shard({statement.args.args[0].arg}=("{name}",))'
