"""What edits mean: the tree that a module has to have once they are made, and the comparison with its new text.

An edit of text is right if its result is the tree that was meant. So whatever registers an edit says here which nodes
it replaces by which, and the text is held against that before anything is written.
"""

from __future__ import annotations

import ast
import bisect
import copy
import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mmrewrite.directives.calls import HintCall, HintImport
from mmrewrite.source.brackets import arguments_of, tokens_between
from mmrewrite.source.failure import TextDiffers
from mmrewrite.source.spans import first_line, kept_program, parse_program, span
from mmrewrite.source.text import SourceText
from mmrewrite.source.walk import walk

# What a node becomes, from what it has become so far: nothing if it goes, several for statements and arguments.
Change = Callable[[list[Any]], list[Any]]
# New statements with the offset and the number by which those of one place are put in order.
_New = tuple[int, int, list[ast.AST]]

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_HOLE = "_mmrewrite_hole_"


class MeantTree:
    """The tree of a module after the edits that are registered, as changes of the nodes that it has now.

    Changes of one node are made in the order in which they are registered; those that are registered twice, once.
    """

    def __init__(self) -> None:
        self._changes: dict[ast.AST, list[Change]] = {}
        self._keys: set[Hashable] = set()
        self._above: dict[ast.stmt, list[_New]] = {}
        self._below: dict[ast.stmt, list[_New]] = {}
        self._count = 0
        self._has_imports = False
        # The lines before and after, and the numbers of those before on which something is changed.
        self._old_lines: list[str] = []
        self._new_lines: list[str] = []
        self._changed: list[int] = []
        self._quoted: Mapping[ast.Constant, ast.expr] = MappingProxyType({})

    # Changes

    def change(self, node: ast.AST, key: Hashable, change: Change) -> None:
        """Have a node become something else; `key` tells its changes apart."""
        if (node, key) not in self._keys:
            self._keys.add((node, key))
            self._changes.setdefault(node, []).append(change)
            self._has_imports = self._has_imports or isinstance(node, ast.Import | ast.ImportFrom | ast.alias)

    def _change_value(self, node: ast.AST, key: Hashable, change: Callable[[Any], Any]) -> None:
        """Have an expression become something else, with whatever it is passed by, or behind."""

        def changed(made: list[Any]) -> list[Any]:
            *before, last = made
            if isinstance(last, ast.keyword) and not isinstance(node, ast.keyword):
                return [*before, ast.keyword(arg=last.arg, value=change(last.value))]
            return [*before, change(last)]

        self.change(node, key, changed)

    def replace(self, node: ast.AST, text: str) -> None:
        """Replace an expression, a named argument or a statement by what a text says."""
        if isinstance(node, ast.stmt):
            self.change(node, ("replace", text), lambda _: list(_fresh(text).body))
        elif isinstance(node, ast.keyword):
            self.change(node, ("replace", text), lambda _: [*_arguments(text)])
        else:
            self._change_value(node, ("replace", text), lambda old: _with_context(_expression(text), old))

    def wrap(self, node: ast.AST, before: str, after: str) -> None:
        """Put text before and behind an expression, as in `f(x)`."""
        text = f"{before}{_HOLE}{after}"
        self._change_value(node, ("wrap", text), lambda old: _filled(_expression(text), old))

    def replace_around(self, node: ast.AST, value: ast.expr, before: str, after: str) -> None:
        """Replace an expression by a part of itself with text before and behind it."""
        text = f"{before}{_HOLE}{after}"
        self._change_value(node, ("around", text), lambda _: _filled(_expression(text), value))

    def remove(self, node: ast.AST) -> None:
        """Take away an argument, a name of an import, an item of a `with` or a statement."""
        self.change(node, "remove", lambda _: [])

    def set(self, node: ast.AST, **fields: object) -> None:
        """Change fields of a node: the name of a keyword or an attribute, the module of an import."""

        def changed(made: list[Any]) -> list[Any]:
            for name, value in fields.items():
                setattr(made[0], name, value)
            return made

        self.change(node, ("set", *fields.items()), changed)

    def name(self, argument: ast.expr, name: str) -> None:
        """Pass a positional argument by its name."""
        self.change(argument, ("name", name), lambda made: [*made[:-1], ast.keyword(arg=name, value=made[-1])])

    def unname(self, keyword: ast.keyword) -> None:
        """Pass a named argument by its position."""
        self.change(keyword, "unname", lambda _: [keyword.value])

    def insert_argument(self, argument: ast.expr, text: str) -> None:
        """Pass more arguments before one."""
        self.change(argument, ("before", text), lambda made: [*_arguments(text), *made])

    def insert_behind(self, element: ast.expr, text: str) -> None:
        """Put another element behind one."""
        self.change(element, ("behind", text), lambda made: [*made, _expression(text)])

    def append_argument(self, call: ast.Call, text: str) -> None:
        """Pass more arguments behind the others."""
        self._change_items(call, ("append", text), lambda items: [*items, *_arguments(text)])

    def prepend_argument(self, call: ast.Call, value: ast.expr) -> None:
        """Pass a value of the module before the others."""
        self._change_items(call, ("prepend", value), lambda items: [value, *items])

    def _change_items(self, call: ast.Call, key: Hashable, change: Callable[[list[Any]], list[Any]]) -> None:
        def changed(made: list[Any]) -> list[Any]:
            # What the call itself has become may be in others by now.
            inner: Any = next(each for part in made for each in ast.walk(part) if getattr(each, "was", None) is call)
            _set_items(inner, change(_items(inner)))
            return made

        self.change(call, key, changed)

    def take_out(self, statement: ast.With, value: ast.expr, instead: str) -> None:
        """Put the block of a `with` in its place, below its value after `instead`; that goes too if it is empty."""

        def taken(_: list[ast.AST]) -> list[ast.AST]:
            return [*([_filled(_statement(f"{instead}{_HOLE}"), value)] if instead else []), *statement.body]

        self.change(statement, "take out", taken)

    def make_above(self, statement: ast.With, value: ast.expr, made: str) -> None:
        """Make the value of the first item of a `with` in a statement above, which begins with `made`."""
        self.remove(statement.items[0])
        self.change(statement, "above", lambda old: [_filled(_statement(f"{made}{_HOLE}"), value), *old])

    def split(self, statement: ast.Assign | ast.Return, call: ast.Call, value: ast.expr, *, is_kept: bool) -> None:
        """Write a call alone, with its statement about another value below it unless that is there already."""
        below = copy.copy(statement)
        below.value = ast.Name(value.id, ast.Load()) if isinstance(value, ast.Name) else value
        self.change(statement, "split", lambda _: [ast.Expr(call), *([] if is_kept else [below])])

    def put_back_hints(self, source: SourceText, calls: Sequence[HintCall], imports: Iterable[HintImport]) -> None:
        """Have hints that are calls and stay be part of the tree, which is read without them, and their imports."""
        # Inner ones first.
        for hint in reversed(calls):
            if hint.call is not None:
                continue
            if hint.alone and isinstance(hint.statement, ast.Expr):
                self.put_back(hint.statement.value, hint.node)
            elif isinstance(hint.statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self._decorate(hint.statement, hint.node)
            elif isinstance(hint.node, ast.Call):
                self._wrap_in(hint.node.args[0], hint.node)
        for imported in imports:
            words = [token.text for token in tokens_between(source, *span(source, imported.alias))]
            self._import_name(imported.statement, imported.alias, words[-1] if "as" in words else None)

    def put_back(self, node: ast.AST, other: ast.AST) -> None:
        """Replace a node by one that the tree has lost, or that is made of parts of the node."""
        self.change(node, "put back", lambda _: [other])

    def _wrap_in(self, value: ast.expr, call: ast.Call) -> None:
        """Make a value the first argument of a call that the tree has lost."""

        def wrapped(old: Any) -> ast.Call:
            made = copy.copy(call)
            _set_items(made, [old, *arguments_of(call)[1:]])
            return made

        self._change_value(value, ("in", call), wrapped)

    def _decorate(self, statement: ast.stmt, decorator: ast.expr) -> None:
        """Give a definition a decorator that the tree has lost."""

        def decorated(made: list[Any]) -> list[Any]:
            every = [*made[-1].decorator_list, decorator]
            made[-1].decorator_list = sorted(every, key=lambda each: (each.lineno, each.col_offset))
            return made

        self.change(statement, ("decorate", decorator), decorated)

    def _import_name(self, statement: ast.Import | ast.ImportFrom, alias: ast.alias, asname: str | None) -> None:
        """Have an import take a name that the tree has lost, or has under another name than this one."""
        if alias not in statement.names:
            added = ast.alias(name=alias.name, asname=asname)

            def longer(made: list[Any]) -> list[Any]:
                made[-1].names = [*made[-1].names, added]
                return made

            self.change(statement, ("import", alias), longer)
        elif alias.asname != asname:
            self.set(alias, asname=asname)

    def put_in_call(self, statement: ast.stmt, value: ast.expr, function: str) -> None:
        """Replace a statement by a call of a function with a value of the statement."""
        text = f"{function}({_HOLE})"
        self.change(statement, "call", lambda _: [_filled(_statement(text), value)])

    def insert(self, text: str, offset: int, *, above: ast.stmt | None = None, below: ast.stmt | None = None) -> None:
        """Write statements `above` or `below` one of a block; in one place, in the order of offsets and calls."""
        made = [_added(each) for each in _fresh(text).body]
        self._has_imports = self._has_imports or any(isinstance(each, ast.Import | ast.ImportFrom) for each in made)
        if above is not None:
            self._above.setdefault(above, []).append((offset, self._count, made))
        elif below is not None:
            self._below.setdefault(below, []).append((offset, self._count, made))
        self._count += 1

    def insert_import(self, tree: ast.Module, source: SourceText, text: str, offset: int) -> None:
        """Write import statements at module level, at an offset."""
        following = (each for each in tree.body if source.line_starts[first_line(each) - 1] >= offset)
        above = next(following, None)
        self.insert(text, offset, above=above, below=tree.body[-1] if above is None else None)

    def replace_import(self, statement: ast.stmt, lines: Iterable[str], *, stays: bool) -> None:
        """Put import lines in the place of an import statement, or behind what stays of it."""
        text = "\n".join(lines)
        self.change(
            statement,
            ("imports", text),
            lambda old: [*(old if stays else ()), *(_added(each) for each in _fresh(text).body)],
        )

    def hold(self, statement: ast.stmt, code: str, *, is_inner: bool) -> None:
        """Hold the code of a module against the statement that it is read from, or the head of a compound one.

        It is without the hints that go away; with `is_inner` it is in the block of an `if`.

        Raises:
            TextDiffers: If that is not the statement.
        """
        (read,) = _fresh(code).body
        if is_inner:
            (read,) = read.body  # type: ignore[attr-defined]
        (meant,) = self._become(statement)
        for name in _BLOCKS:
            if isinstance(meant, ast.stmt) and hasattr(meant, name):
                meant, read = copy.copy(meant), copy.copy(read)
                setattr(meant, name, [])
                setattr(read, name, [])
        if self._difference(meant, read) is not None:
            raise TextDiffers(f"the statement at line {statement.lineno} is read as another one")

    def restate(self, statement: ast.stmt, code: str) -> None:
        """Replace a statement, or the head of a compound one, by that of some code; its blocks stay."""

        def restated(_: list[ast.AST]) -> list[ast.AST]:
            (new,) = _fresh(code).body
            for name in _BLOCKS:
                if hasattr(statement, name) and hasattr(new, name):
                    setattr(new, name, getattr(statement, name))
            return [new]

        self.change(statement, "restate", restated)

    # Comparison

    def check(
        self,
        tree: ast.Module,
        source: SourceText,
        text: str,
        quoted: Mapping[ast.Constant, ast.expr] = MappingProxyType({}),
    ) -> None:
        """Hold the new text of a module against the tree that is meant.

        Args:
            tree: The tree of the module as it is.
            source: Its text.
            text: Its new text.
            quoted: The expressions that strings hold, such as annotations, with nodes that may be changed.

        Raises:
            TextDiffers: If it is another program.
        """
        new = _parsed(text, kept_program)
        nodes = [*self._changes, *self._above, *self._below]
        lines = {getattr(node, name, None) for node in nodes for name in ("lineno", "end_lineno")}
        self._changed = sorted(line for line in lines if line is not None)
        self._old_lines, self._new_lines = lines_of(source.text), lines_of(text)
        self._quoted = quoted
        line = self._difference(tree, new)
        # Nobody looks at it after this, and in a large file it is large.
        kept_program.cache_clear()
        if line is not None:
            raise TextDiffers(f"the edit at line {line} says something else than it means")

    def _difference(self, old: object, new: ast.AST) -> int | None:
        """The line of the first node that is not what is meant, None if all are."""
        stack: list[tuple[Any, Any, int]] = [(old, new, getattr(old, "lineno", 1))]
        while stack:
            one, other, line = stack.pop()
            if type(one) is not type(other):
                return line
            if isinstance(one, ast.Constant) and one in self._quoted and one.value != other.value:
                try:
                    stack.append((self._single(self._quoted[one]), _expression(other.value.strip()), line))
                except TextDiffers:
                    return line
            elif isinstance(one, list):
                if len(one) != len(other):
                    return line
                stack += [(mine, yours, line) for mine, yours in zip(one, other, strict=True)]
            elif not isinstance(one, ast.AST):
                # The value of `nan` is not equal to itself.
                if one != other and one == one:
                    return line
            elif not (isinstance(one, ast.stmt) and self._is_kept(one, other)):
                line = getattr(one, "lineno", line)
                for mine, yours in self._parts(one, other):
                    if mine is None and yours is not None:
                        return line
                    stack.append((mine, yours, line))
        return None

    def _parts(self, one: ast.AST, other: ast.AST) -> Iterator[tuple[Any, Any]]:
        """The fields of a node after their changes, with those that they have to be equal to."""
        items = [each for item in _items(one) for each in self._become(item)] if isinstance(one, ast.Call) else []
        for name in one._fields:
            mine: Any = getattr(one, name, None)
            yours: Any = getattr(other, name, None)
            if mine is yours:
                # Names are one string wherever they stand, and to load or to store is one node.
                continue
            if isinstance(one, ast.Call) and name in ("args", "keywords"):
                yield [each for each in items if isinstance(each, ast.keyword) == (name == "keywords")], yours
            elif name in _BLOCKS and isinstance(mine, list):
                block = self._block(mine)
                yield self._without_imports(block, yours) if self._has_imports else (block, yours)
            elif isinstance(one, ast.JoinedStr) and name == "values" and len(mine) == len(yours):
                yield from _without_labels(mine, yours)
            elif isinstance(mine, list):
                yield [each for item in mine for each in self._become(item)], yours
            elif isinstance(mine, ast.AST):
                yield self._single(mine), yours
            else:
                yield mine, yours

    def _single(self, node: ast.AST) -> Any:
        made = self._become(node)
        return made[0] if len(made) == 1 else made

    def _become(self, node: Any) -> list[Any]:
        """What a node has become. What its parts have become is asked when these are compared."""
        changes = self._changes.get(node) if isinstance(node, ast.AST) else None
        if changes is None:
            return [node]
        made = [copy.copy(node)]
        made[0].was = node
        for change in changes:
            made = change(made)
        return [final for each in made for final in self._become(each)]

    def _block(self, statements: Sequence[Any]) -> list[Any]:
        """The statements of a block, with those that are new in it."""
        found: list[Any] = []
        gap: list[_New] = []
        for statement in statements:
            gap += self._above.get(statement, ())
            found += [each for _, _, made in sorted(gap, key=_place) for each in made]
            found += self._become(statement)
            gap = list(self._below.get(statement, ()))
        return found + [each for _, _, made in sorted(gap, key=_place) for each in made]

    def _without_imports(self, was: list[Any], now: list[Any]) -> tuple[Any, Any]:
        """Two blocks without their imports, which are compared name by name; None for the first if these differ.

        A statement may take several names. A new name may stand anywhere among the imports around its place.
        """
        rest: tuple[list[Any], list[Any]] = [], []
        queues = [*was], [*now]
        for queue in queues:
            queue.reverse()
        while any(queues):
            runs: tuple[list[_Imported], list[_Imported]] = [], []
            for queue, run, others in zip(queues, runs, rest, strict=True):
                while queue and isinstance(queue[-1], ast.Import | ast.ImportFrom):
                    run += self._imported(queue.pop())
                others += [queue.pop()] if queue else []
            if not _are_same(*runs):
                return None, rest[1]
        return rest

    def _imported(self, statement: ast.Import | ast.ImportFrom) -> Iterator[_Imported]:
        home = (statement.level, statement.module) if isinstance(statement, ast.ImportFrom) else None
        for alias in (each for item in statement.names for each in self._become(item)):
            yield (home, alias.name, alias.asname), hasattr(statement, "is_added") or hasattr(statement, "was")

    def _is_kept(self, one: ast.stmt, other: ast.stmt) -> bool:
        """Whether a statement on which nothing is changed has the same text as before."""
        if not hasattr(one, "lineno") or not hasattr(other, "lineno") or one.col_offset != other.col_offset:
            return False
        first, last = first_line(one), one.end_lineno or one.lineno
        if bisect.bisect_left(self._changed, first) < bisect.bisect_right(self._changed, last):
            return False
        begin, end = first_line(other), other.end_lineno or other.lineno
        return self._old_lines[first - 1 : last] == self._new_lines[begin - 1 : end]


# A name that an import binds: its module, itself and its local name; and whether it is new.
_ImportedName = tuple[Hashable, str, str | None]
_Imported = tuple[_ImportedName, bool]


def _are_same(meant: Sequence[_Imported], found: Sequence[_Imported]) -> bool:
    """Whether both lists of imports bind the same names, and keep their order within a module and for a local name.

    The same name need not be imported twice, unless another one has its local name in between.
    """
    kept = [name for name, is_added in meant if not is_added]
    stay = {*kept}
    rest = [name for name, _ in found if name in stay]
    if {name for name, _ in meant} != {name for name, _ in found} or _homes(kept) != _homes(rest):
        return False
    locals_of = {_local(name) for name in kept}
    return len(locals_of) == len(kept) or all(_bound(kept, each) == _bound(rest, each) for each in locals_of)


def _homes(names: Iterable[_ImportedName]) -> list[Hashable]:
    """The modules that names come from, in order."""
    return [*dict.fromkeys(name[:2] if name[0] is None else name[0] for name in names)]


def _bound(names: Iterable[_ImportedName], local: str) -> list[_ImportedName]:
    """What imports bind a local name to, in turn."""
    return [name for name, _ in itertools.groupby(each for each in names if _local(each) == local)]


def _local(name: _ImportedName) -> str:
    return name[2] or name[1].partition(".")[0]


def _without_labels(was: Sequence[ast.expr], now: Sequence[ast.expr]) -> Iterator[tuple[Any, Any]]:
    """The parts of an f-string, without the text that `{x=}` shows of an expression where it is another."""
    for index, (one, other) in enumerate(zip(was, now, strict=True)):
        old, new = (_without_label(each, values[index + 1 :]) for each, values in ((one, was), (other, now)))
        if old is None or new is None or one.value == other.value:  # type: ignore[attr-defined]
            yield one, other
        else:
            yield old, new


def _without_label(text: ast.expr, following: Sequence[ast.expr]) -> str | None:
    """The text before `x=`, where that shows the expression that follows; else None."""
    if not (isinstance(text, ast.Constant) and following and isinstance(following[0], ast.FormattedValue)):
        return None
    shown, sign, rest = str(text.value).rpartition("=")
    wanted = ast.dump(following[0].value)
    for start in range(len(shown)) if sign and not rest.strip() else ():
        try:
            if ast.dump(_expression(shown[start:])) == wanted:
                return shown[:start]
        except (TextDiffers, AssertionError):
            continue
    return None


def _place(item: _New) -> tuple[int, int]:
    return item[:2]


def _items(call: ast.Call) -> list[Any]:
    """The arguments of a call in order, also where nodes of several texts are among them."""
    found: list[Any] | None = getattr(call, "items", None)
    return arguments_of(call) if found is None else found


def _set_items(call: Any, items: list[Any]) -> None:
    call.items = items


def _added(statement: Any) -> ast.AST:
    statement.is_added = True
    found: ast.AST = statement
    return found


def _parsed(text: str, parse: Callable[[str], ast.Module] = parse_program) -> ast.Module:
    try:
        return parse(text)
    except SyntaxError as error:
        raise TextDiffers(f"the result does not parse: {error.msg} (line {error.lineno})") from None


def _fresh(text: str) -> ast.Module:
    """The tree of new text, whose positions are not those of the module."""
    tree = _parsed(text)
    nodes = [*walk(tree)]
    for node in nodes:
        if isinstance(node, ast.Call):
            _set_items(node, arguments_of(node))
    for node in nodes:
        if isinstance(node, ast.stmt):
            del node.lineno
    return tree


def _statement(text: str) -> ast.stmt:
    (statement,) = _fresh(text).body
    return statement


def _expression(text: str) -> ast.AST:
    statement = _statement(f"({text})")
    assert isinstance(statement, ast.Expr)
    return statement.value


def _arguments(text: str) -> list[Any]:
    call = _expression(f"f({text})")
    assert isinstance(call, ast.Call)
    return _items(call)


def _with_context(new: Any, old: Any) -> ast.AST:
    """An expression that is assigned to if the one before it was."""
    if hasattr(old, "ctx") and hasattr(new, "ctx"):
        new.ctx = old.ctx
    found: ast.AST = new
    return found


def _filled(tree: ast.AST, inner: ast.AST) -> ast.AST:
    """The tree with a node in the place of the hole."""
    if isinstance(tree, ast.Name):
        return inner
    for node in ast.walk(tree):
        fields = [*ast.iter_fields(node), *([("items", node.items)] if hasattr(node, "items") else [])]
        for name, value in fields:
            if isinstance(value, ast.Name) and value.id == _HOLE:
                setattr(node, name, inner)
            elif isinstance(value, list):
                places = [index for index, each in enumerate(value) if isinstance(each, ast.Name) and each.id == _HOLE]
                for index in places:
                    value[index] = inner
    return tree


def lines_of(text: str) -> list[str]:
    """The lines of a text as Python counts them, without their ends."""
    return re.split("\r\n|\r|\n", text)
