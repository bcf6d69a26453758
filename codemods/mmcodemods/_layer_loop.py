"""A loop over layers: the index of the iteration, the number of layers, and the arguments of its `stages` hint."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import libcst as cst

from mmcodemods._task import TaskCodemod
from mmrewrite.analysis.loops.outlining import Outline
from mmrewrite.analysis.meshes.schedules import stage_axis
from mmrewrite.analysis.objects.annotations import annotation_of, is_annotated, result_of
from mmrewrite.analysis.objects.computed_attributes import is_computed_attribute, runs_code, runs_code_on
from mmrewrite.codemod.base import enclosed, spaced
from mmrewrite.codemod.fragment import without_cuts
from mmrewrite.codemod.layout import indentation
from mmrewrite.codemod.site import Site
from mmrewrite.directives.arguments import whole_number
from mmrewrite.directives.vocabulary import FOR
from mmrewrite.source.calls import stars_of
from mmrewrite.source.functions import is_generator
from mmrewrite.source.libcst_parser import parse_statement
from mmrewrite.source.line_breaking import longest_line
from mmrewrite.values.flow import values_of
from mmrewrite.values.value import By, Value

# Iterators have no `len`, and to evaluate one again may find it exhausted.
_ONCE_ONLY = frozenset(
    f"builtins.{name}()" for name in ("map", "filter", "iter", "zip", "enumerate", "reversed", "open")
)

# These have the length of their first argument.
_AS_LONG = frozenset(f"builtins.{name}" for name in ("enumerate", "list", "tuple", "sorted", "reversed"))


@dataclass(frozen=True)
class Count:
    """The index of an iteration and the number of iterations, as source text.

    `target` and `iterable` are the loop's new header if it needs an index first, else None.
    """

    index: str
    total: str
    target: str | None = None
    iterable: str | None = None


class LoopCodemod(TaskCodemod):
    """A codemod whose site is a `for` loop over layers."""

    kinds = frozenset((FOR,))
    _position: Count | None = None
    _function: LoopFunction | None = None
    # Names for the values that the loop keeps, by the statements that compute them.
    _values: Mapping[cst.CSTNode, str] = MappingProxyType({})

    def plain_loop(self) -> ast.For:
        """The hinted loop."""
        loop = self.site.statement
        if not isinstance(loop, ast.For):
            self.refuse("an `async for` has no order that could be dealt out; use a plain `for`")
        return loop

    def give_index(self, loop: ast.For, position: Count) -> None:
        """Have the loop count its iterations where it does not yet."""
        if position.target is not None:
            self._position = position
            self.site.transform(loop, self)

    def call_outlined(self, loop: ast.For, outline: Outline, function: str, task: str, position: Count | None) -> None:
        """Have the loop's body become a function, above a loop that calls it as a task.

        The lines of the body stay as they are; `position` has the loop's new header where it needs an index.
        """
        site = self.site
        fragment = site.fragment(loop)
        header = without_cuts(site.facts.source, fragment.start, fragment.end, site.draft.cuts)
        if position is not None and position.target is not None:
            header = f"for {position.target} in {position.iterable}:"
        names = [site.local_name("collected") for _ in outline.collected]
        self._values = {
            site.fragment(each.statement).node: name for each, name in zip(outline.collected, names, strict=True)
        }
        for each in outline.collected:
            site.transform(each.statement, self)
        results = ", ".join((*outline.results, *names))
        call = f"{site.runtime}.task({function}, task={task})({', '.join(outline.parameters)})"
        source = site.facts.source
        unit = indentation(source, loop.body[0]).removeprefix(indentation(source, loop))
        below = f"{site.unindented(header, loop)}\n{unit}{results} = {call}"
        for each, name in zip(outline.collected, names, strict=True):
            before, after = each.keep
            below += f"\n{unit}{before}{name}{after}"
        self._function = LoopFunction.at(site, function, outline.parameters, (*outline.results, *names))
        site.insert_blank_above(loop)
        site.transform(loop, self)
        site.wrap_block(None, f"return {results}", below, loop)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        """`seen.append(x)` becomes `collected = x`."""
        name = self._values.get(original_node)
        if name is None:
            return updated_node
        (kept,) = updated_node.body
        if isinstance(kept, cst.Expr):
            value = cst.ensure_type(kept.value, cst.Call).args[0].value
        else:
            value = cst.ensure_type(kept, cst.Assign).value
        assigned = cst.Assign(targets=[cst.AssignTarget(cst.Name(name))], value=enclosed(value))
        return updated_node.with_changes(body=[assigned])

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> cst.For | cst.FunctionDef:
        """`for block in blocks` becomes `for i, block in enumerate(blocks)`, or `def layer(x, block)`."""
        if self._function is not None:
            return self._function.around(updated_node)
        if self._position is None:
            return updated_node
        header = f"for {self._position.target} in {self._position.iterable}: pass"
        loop = cst.ensure_type(parse_statement(header), cst.For)
        return updated_node.with_changes(
            target=loop.target,
            iter=loop.iter,
            whitespace_after_for=spaced(updated_node.whitespace_after_for),
            whitespace_before_in=spaced(updated_node.whitespace_before_in),
            whitespace_after_in=spaced(updated_node.whitespace_after_in),
        )


@dataclass(frozen=True)
class LoopFunction:
    """The function that a loop's body becomes: its head, with annotations where the code around has them."""

    head: str

    @classmethod
    def at(cls, site: Site, name: str, parameters: Sequence[str], results: Sequence[str]) -> LoopFunction:
        """The function at a site that takes some of its names, and returns some."""
        if not is_annotated(site):
            return cls(f"def {name}({', '.join(parameters)}):")
        annotated = [f"{parameter}: {annotation_of(site, parameter)}" for parameter in parameters]
        begin, unit = indentation(site.facts.source, site.statement), site.draft.hanging
        together, each = ", ".join(annotated), "".join(f"\n{unit}{one}," for one in annotated)
        ways = (together, f"\n{unit}{together}\n", f"{each}\n") if annotated else (together,)
        heads = [f"def {name}({inside}) -> {result_of(site, results)}:" for inside in ways]
        widths = (longest_line("\n".join(begin + line for line in head.splitlines())) for head in heads)
        fitting = (head for head, width in zip(heads, widths, strict=True) if width <= site.draft.width)
        return cls(next(fitting, heads[-1]))

    def around(self, loop: cst.For) -> cst.FunctionDef:
        """`for i in range(n):` as `def layer(x, i):`, with the same block."""
        return cst.ensure_type(parse_statement(f"{self.head} pass"), cst.FunctionDef).with_changes(body=loop.body)


def stage_details(site: Site, *, counted: bool) -> dict[str, str]:
    """The arguments of a `stages` hint as source text, `weights="flops"` only if the runtime counts; or a refusal."""
    axis, weights = site.hint.argument("axis"), site.hint.argument("weights")
    if axis is None:
        site.check_axis("stage", site.hint.start, site.hint.end - site.hint.start)
    elif isinstance(axis.value, ast.Constant):
        site.check_axis(str(axis.value.value), axis.start, len(axis.text))
    details = {"axis": '"stage"' if axis is None else axis.text}
    constant = weights.value.value if weights is not None and isinstance(weights.value, ast.Constant) else None
    if constant == "auto" and not counted:
        site.refuse(
            'the layers of a scan are cut before operations are counted, so `weights="auto"` does not go with them; '
            "write a cost for each layer, write them as a `for` loop, or remove `weights=`"
        )
    if weights is not None and (counted or constant is None):
        details["weights"] = weights.text
    for name in ("chunks", "placement"):
        argument = site.hint.argument(name)
        if argument is not None and not counted:
            site.refuse(
                f"the layers of a scan are cut once, so `{name}=` does not go with them; write them as a `for` loop, "
                f"or remove `{name}=`"
            )
        if argument is not None:
            details[name] = argument.text
    return details


def check_deal(site: Site, total: str) -> None:
    """Report numbers in a `stages` hint that the runtime could not deal the layers out by; `total` is their number."""
    layers = int(total) if total.isdigit() else 0
    arguments = {name: site.hint.argument(name) for name in ("weights", "chunks", "placement")}
    weights = arguments["weights"]
    if weights is not None and isinstance(weights.value, ast.List | ast.Tuple):
        if layers and layers != len(weights.value.elts) and not _has_stars(weights.value):
            site.error(
                f"`weights=` has {len(weights.value.elts)} entries for {layers} layers; give one for each", weights
            )
        if any(isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.USub) for item in weights.value.elts):
            site.error("`weights=` must not be negative: a weight is what a layer costs", weights)
    chunks, placement = arguments["chunks"], arguments["placement"]
    rounds = 2 if placement is not None else 1
    if chunks is not None:
        rounds = whole_number(chunks.value) or rounds
        if placement is not None and rounds < 2:
            site.error(
                f"`placement=` folds two rounds or more, and `chunks={rounds}` is one; leave `chunks=` out", chunks
            )
    axis = stage_axis(site.hint)
    sizes = site.axis_sizes(axis) if axis is not None else []
    if layers and sizes and layers < min(sizes) * rounds:
        what = f"{layers} layer{'s' * (layers > 1)} cannot be dealt out over {min(sizes)} slices of axis `{axis}`"
        if rounds > 1:
            site.error(f"{what} in {rounds} rounds; use a smaller axis or more layers, or fewer chunks")
        site.error(f"{what}; use a smaller axis or more layers")


def _has_stars(node: ast.List | ast.Tuple) -> bool:
    return any(isinstance(item, ast.Starred) for item in node.elts)


def count(site: Site, loop: ast.For) -> Count:
    """The index and the number of iterations; refuses a loop where they have no exact expression."""
    return _checked(site, loop, _count(site, loop, _total))


def index(site: Site, loop: ast.For) -> Count:
    """The index alone, of a loop whose number of iterations nothing needs; the total is empty."""
    return _checked(site, loop, _count(site, loop, lambda site, iterable: ""))


def _checked(site: Site, loop: ast.For, found: Count) -> Count:
    for node in ast.walk(ast.parse(f"({found.total})")):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("len", "min"):
            _check_builtin(site, loop, node.func.id)
    stored = {
        node.id
        for statement in loop.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    target = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    # The number is read in the loop, where a name of its target is no more what it was in the head.
    changed = sorted((_names(found.index) & stored) | (_names(found.total) & (stored | target)))
    if changed:
        site.refuse(f"the loop assigns `{changed[0]}`, which says what iteration this is; use another name", loop)
    return found


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(f"({text})")) if isinstance(node, ast.Name)}


def _count(site: Site, loop: ast.For, total_of: Callable[[Site, ast.expr], str]) -> Count:
    iterable = loop.iter
    if isinstance(iterable, ast.Call):
        name = site.resolve(iterable.func)
        plain = "*" not in stars_of(iterable)
        keywords = {keyword.arg for keyword in iterable.keywords}
        if name == "builtins.range" and plain and not keywords and isinstance(loop.target, ast.Name):
            return _of_range(site, loop, iterable)
        if name == "builtins.enumerate" and plain and keywords <= {"start"}:
            return _of_enumerate(site, loop, iterable, total_of)
    return _with_index(site, loop, total_of(site, iterable))


def _with_index(site: Site, loop: ast.For, total: str) -> Count:
    index = site.loop_index(loop, "i", "layer")
    target = site.text(loop.target)
    # `for i, a, b in enumerate(...)` would unpack three values of each pair.
    if isinstance(loop.target, ast.Tuple) and not target.startswith("("):
        target = f"({target})"
    _check_builtin(site, loop, "enumerate")
    return Count(index, total, f"{index}, {target}", f"enumerate({site.text(loop.iter)})")


def _check_builtin(site: Site, loop: ast.For, name: str) -> None:
    """Refuse a loop where a function that is written means something else."""
    if site.resolve(ast.Name(name, ast.Load())) != f"builtins.{name}":
        site.refuse(f"`{name}` means something else here; rename it, or count the iterations in the loop", loop)


def _of_range(site: Site, loop: ast.For, call: ast.Call) -> Count:
    if not all(_is_repeatable(site, argument) for argument in call.args) or not 1 <= len(call.args) <= 3:
        site.refuse("the arguments of this `range` do more than name a number; assign them to names first", loop)
    variable = site.text(loop.target)
    renamed: tuple[str, str] | tuple[()] = ()
    if variable.startswith("_") and site.scope.is_unused(variable):
        variable = site.loop_index(loop, "i", "layer")
        renamed = (variable, site.text(call))
    if len(call.args) == 1:
        return Count(variable, site.text(call.args[0]), *renamed)
    start, stop = call.args[0], call.args[1]
    if len(call.args) == 2 or _is_number(call.args[2], 1):
        return Count(_minus(site, variable, start), _minus(site, site.text(stop), start, stop), *renamed)
    step = _operand(site, call.args[2])
    index = _minus(site, variable, start)
    index = index if index.isidentifier() else f"({index})"
    return Count(f"{index} // {step}", f"len({site.text(call)})", *renamed)


def _of_enumerate(site: Site, loop: ast.For, call: ast.Call, total_of: Callable[[Site, ast.expr], str]) -> Count:
    starts = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
    target = loop.target
    if not (isinstance(target, ast.Tuple) and len(target.elts) == 2 and isinstance(target.elts[0], ast.Name)):
        site.refuse("`enumerate` without an index of its own; write `for i, layer in enumerate(...)`", loop)
    if len(call.args) == 0 or len(starts) > 1:
        site.refuse("this `enumerate` cannot be read; write `enumerate(layers)`", loop)
    total = total_of(site, call.args[0])
    index = target.elts[0].id
    if starts:
        if not _is_repeatable(site, starts[0]):
            site.refuse("the start of this `enumerate` does more than name a number; assign it to a name first", loop)
        index = _minus(site, index, starts[0])
    return Count(index, total)


def _total_of_zip(site: Site, call: ast.Call) -> str:
    found = (_total(site, argument) for argument in call.args)
    # The same total may be written with other line breaks and comments.
    totals = [*{ast.dump(ast.parse(f"({total}\n)")): total for total in found}.values()]
    strict = any(isinstance(keyword.value, ast.Constant) and keyword.value.value is True for keyword in call.keywords)
    return totals[0] if strict or len(totals) == 1 else f"min({', '.join(totals)})"


def _total(site: Site, iterable: ast.expr) -> str:
    found = _read_total(site, iterable)
    if found is not None:
        return found
    if not _has_length(site, iterable):
        site.refuse(
            f"cannot tell how many layers `{site.text(iterable)}` has without running it; assign `list(...)` of it to "
            "a name above the loop",
            iterable,
        )
    return f"len({site.text(iterable)})"


def _read_total(site: Site, iterable: ast.expr) -> str | None:
    """The length of an iterable that its own text says, or that of another one that it has the length of."""
    match iterable:
        case ast.Tuple(elts=items) | ast.List(elts=items):
            stars = [item.value for item in items if isinstance(item, ast.Starred)]
            own = [str(len(items) - len(stars))] if len(items) > len(stars) or not stars else []
            return " + ".join([_total(site, each) for each in stars] + own)
        case ast.ListComp(generators=[ast.comprehension(iter=inner, ifs=[], is_async=0)]):
            return _total(site, inner)
        case ast.Call(func=ast.Attribute(attr="items" | "keys" | "values", value=holder), args=[], keywords=[]):
            # Not of the view itself: that of Flax's `FrozenDict` has no length.
            return f"len({site.text(holder)})" if _has_length(site, holder) else None
        case ast.Call(args=[inner, *_], keywords=keywords):
            name = site.resolve(iterable.func)
            if (
                name == "builtins.range"
                and len(iterable.args) == 1
                and isinstance(inner, ast.Constant)
                and not keywords
            ):
                return site.text(inner)
            if name == "builtins.zip":
                return _total_of_zip(site, iterable)
            if name == "jax.random.split":
                return _number_of_keys(site, iterable)
            if name in _AS_LONG:
                return _total(site, inner)
    return None


def _number_of_keys(site: Site, split: ast.Call) -> str | None:
    """How many keys `jax.random.split` makes; None where `*` or `**` hides that, or it must not be evaluated again."""
    if stars_of(split):
        return None
    given = [*split.args[1:2], *(each.value for each in split.keywords if each.arg == "num")]
    if not given:
        return "2"
    return site.text(given[0]) if _is_repeatable(site, given[0]) else None


def _minus(site: Site, text: str, start: ast.expr, whole: ast.expr | None = None) -> str:
    if _is_number(start, 0):
        return text
    match whole, start:
        case ast.Constant(value=int(stop)), ast.Constant(value=int(first)):
            return str(stop - first)
    left = text if whole is None else _operand(site, whole)
    return f"{left} - {_operand(site, start)}"


def _operand(site: Site, node: ast.expr) -> str:
    text = site.text(node)
    return f"({text})" if isinstance(node, ast.BinOp | ast.UnaryOp) else text


def _is_number(node: ast.expr, value: int) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value == value


def _has_length(site: Site, node: ast.expr) -> bool:
    """Whether the length of an expression can be asked for again and again."""
    flow = values_of(site.project)

    def lacks_length(value: Value) -> bool | None:
        head, kinds = value.head, [step.kind for step in value.path if step.kind is not By.BOUND]
        if isinstance(head, str):
            return value.outside in _ONCE_ONLY or f"{value.outside}".startswith("itertools.") or None
        if isinstance(head, ast.GeneratorExp):
            return not kinds or None
        if isinstance(head, ast.FunctionDef):
            return (kinds == [By.CALL] and is_generator(head)) or None
        bases = flow.bases(value.module, head) if isinstance(head, ast.ClassDef) and value.is_made else None
        names = [home.facts.names.inner[each].bindings for home, each in bases.classes] if bases is not None else []
        is_seen = bases is not None and bases.is_whole and not bases.outside
        return (is_seen and not any("__len__" in each for each in names)) or None

    return (
        _is_repeatable(site, node)
        and not runs_code_on(site, node, "__len__")
        and not flow.may(flow.value_in(site.facts, node), lacks_length).answers
    )


def _is_repeatable(site: Site, node: ast.expr) -> bool:
    """Whether an expression can be evaluated again, with the same value and without side effects."""
    return _is_plain(site, node) and not runs_code(site, node)


def _is_plain(site: Site, node: ast.expr) -> bool:
    """Whether the text of an expression alone says that it can be evaluated again."""
    match node:
        case ast.Constant() | ast.Name():
            return True
        case ast.Attribute():
            return _is_repeatable(site, node.value) and not is_computed_attribute(site, node)
        case ast.Subscript():
            return _is_repeatable(site, node.value) and _is_repeatable(site, node.slice)
        case ast.Slice():
            return all(part is None or _is_repeatable(site, part) for part in (node.lower, node.upper, node.step))
        case ast.UnaryOp():
            return _is_repeatable(site, node.operand)
        case ast.BinOp():
            return _is_repeatable(site, node.left) and _is_repeatable(site, node.right)
        case ast.Call():
            harmless = site.resolve(node.func) in ("builtins.len", "builtins.range", "builtins.min", "builtins.max")
            return harmless and not node.keywords and all(_is_repeatable(site, argument) for argument in node.args)
    return False
