"""What `tools/index_names.py` reads beside names: arguments and members of public functions and classes, and flags.

A part is gone if its function, class or method is still there and does not have it any more. A function that takes
`**keywords`, and a class with a base out of view, may have any, so nothing is said of them. Of names that
`mmrewrite modernize` moves, the arguments of the old one are held against those of the new one.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from index_names import Module, Release

Statement = ast.FunctionDef | ast.ClassDef
# Calls that define a flag, in any release: `define_bool_state`, `enum_state`, `bool_flag`, `DEFINE_bool`.
_FLAG_MAKERS = ("_state", "_flag")
_FLAG_PREFIXES = ("DEFINE_", "define_")
# Where the members of arrays are written: two classes, and tables from which JAX gives them methods.
_ARRAY = "jax.Array"
_ARRAY_CLASSES = (("basearray.py", "Array"), ("basearray.pyi", "Array"), ("array.py", "ArrayImpl"))
_ARRAY_TABLES = ("jax._src.numpy.array_methods", "jax._src.numpy.lax_numpy")


@dataclass(frozen=True)
class Shape:
    """The parts of a function, method or class in one release.

    Attributes:
        keywords: The parameters that can be passed by name, with the text of their default; None if any can.
        order: The parameters that can be passed by position; None if they are not seen.
        members: The public attributes of a class; None if there may be others.
        seen: Those that are seen, also where there may be others.
        required: The parameters without a default.
        takes_more: Whether any number of arguments by position may follow.
        is_of_class: Whether it is a method that is given no object where it is called by its class.
        own: The name of a class where it is defined.
    """

    keywords: Mapping[str, str] | None = None
    order: tuple[str, ...] | None = None
    members: frozenset[str] | None = None
    seen: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    takes_more: bool = False
    is_of_class: bool = False
    own: str = ""


@dataclass
class Parts:
    """The parts of the names of one release, by the place of their definition, and the defaults of flags.

    Names that a module binds and does not offer are among them: one that was public before may be bound so today.
    """

    shapes: dict[str, Shape] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)
    public: set[str] = field(default_factory=set)
    flags: dict[str, str] = field(default_factory=dict)


def parts_of(release: Release) -> Parts:
    """The parts of a release."""
    found = Parts()
    for name, named in release.names.items():
        if named.state not in ("there", "warns", "hidden"):
            continue
        if named.state != "hidden":
            found.public.add(name)
        home, _, own = name.rpartition(".")
        if home not in release.paths:
            continue
        definer, local = release.resolve(home, own)
        module = release.module(definer)
        statement = module.defined.get(local) if module is not None else None
        if name == _ARRAY:
            found.places.setdefault(f"{definer}.{local}", []).append(name)
            members = _array_members(release)
            found.shapes[name] = Shape(members=members, seen=members)
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Lambda):
            found.places.setdefault(f"{definer}.{local}", []).append(name)
            found.shapes[name] = _of_arguments(statement.value.args, 0)
        elif module is not None and (function := _asserted_by(statement, module.defined)) is not None:
            found.places.setdefault(f"{definer}.{local}", []).append(name)
            found.shapes[name] = _of_function(function, 0)
        elif module is not None and isinstance(statement, Statement):
            found.places.setdefault(f"{definer}.{local}", []).append(name)
            found.shapes[name] = _shape(release, definer, statement)
            if isinstance(statement, ast.ClassDef):
                for method, (place, shape) in _methods(release, definer, statement, 0).items():
                    found.places.setdefault(f"{place}.{method}", []).append(f"{name}.{method}")
                    found.shapes[f"{name}.{method}"] = shape
    for path in release.paths.values():
        data = release.archive.read(path)
        if b"_state(" in data or b"_flag(" in data or b"DEFINE_" in data:
            found.flags |= _flags(ast.parse(data))
    return found


def _asserted_by(statement: ast.stmt | None, defined: Mapping[str, ast.stmt]) -> ast.FunctionDef | None:
    """The function that says what an assertion of chex takes: `assert_x = _value_assertion(assert_fn=_assert_x)`."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return None
    names = [_dotted(each.value) for each in statement.value.keywords if each.arg == "assert_fn"]
    function = defined.get(names[0]) if names and names[0] is not None else None
    return function if isinstance(function, ast.FunctionDef) else None


def _shape(release: Release, definer: str, statement: Statement) -> Shape:
    if isinstance(statement, ast.FunctionDef):
        return _of_function(statement, 0)
    seen, is_all = _members(release, definer, statement, 0)
    made = _of_constructor(release, definer, statement, 0)
    return replace(made, members=seen if is_all else None, seen=seen, own=statement.name)


# Decorators whose functions are called otherwise than they are written.
_OTHERWISE_CALLED = (
    "curry",
    "transformation",
    "transformation_with_aux",
    "transformation2",
    "transformation_with_aux2",
)


def _of_function(function: ast.FunctionDef, skip: int) -> Shape:
    """The parameters of a function, without the first `skip`."""
    marks = {(_dotted(each) or "").rpartition(".")[2] for each in function.decorator_list}
    return _of_arguments(function.args, skip) if marks.isdisjoint(_OTHERWISE_CALLED) else Shape()


def _of_arguments(given: ast.arguments, skip: int) -> Shape:
    places = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(places) - len(given.defaults)) + [*given.defaults]
    values = {place.arg: default for place, default in zip(places, defaults, strict=True)}
    values |= {place.arg: default for place, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)}
    for place in places[:skip]:
        del values[place.arg]
    by_position = {place.arg for place in given.posonlyargs}
    keywords = {name: _default(value) for name, value in values.items() if name not in by_position}
    return Shape(
        keywords if given.kwarg is None else None,
        tuple(place.arg for place in places[skip:]),
        required=frozenset(name for name, value in values.items() if value is None),
        takes_more=given.vararg is not None,
    )


def _methods(release: Release, definer: str, statement: ast.ClassDef, depth: int) -> dict[str, tuple[str, Shape]]:
    """The public methods of a class and its bases, each with the class that defines it."""
    found: dict[str, tuple[str, Shape]] = {}
    for base in reversed(list(_bases(release, definer, statement))) if depth < 8 else ():
        if base is not None:
            found |= _methods(release, *base, depth + 1)
    for part in statement.body:
        if isinstance(part, ast.FunctionDef) and (part.name == "__call__" or not part.name.startswith("_")):
            marks = {(_dotted(each) or "").rpartition(".")[2] for each in part.decorator_list}
            found.pop(part.name, None)
            if not marks & {"property", "cached_property", "setter", "deleter"}:
                shape = _of_function(part, int("staticmethod" not in marks))
                is_of_class = not marks.isdisjoint(("classmethod", "staticmethod"))
                found[part.name] = f"{definer}.{statement.name}", replace(shape, is_of_class=is_of_class)
    return found


def _default(node: ast.expr | None) -> str:
    return ast.unparse(node) if node is not None else ""


def _bases(release: Release, definer: str, statement: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef] | None]:
    """The base classes of a class, None for one that is out of view."""
    for base in statement.bases:
        dotted = _dotted(base.value if isinstance(base, ast.Subscript) else base)
        if (dotted or "").rpartition(".")[2] in ("object", "Generic", "ABC", "Protocol"):
            continue
        found = _followed(release, definer, dotted) if dotted is not None else None
        yield found
    for keyword in statement.keywords:
        if keyword.arg != "metaclass":
            yield None


def _followed(release: Release, definer: str, dotted: str) -> tuple[str, ast.ClassDef] | None:
    first, *rest = dotted.split(".")
    place = release.resolve(definer, first)
    for part in rest:
        place = release.resolve(".".join(filter(None, place)), part)
    module: Module | None = release.module(place[0])
    statement = module.defined.get(place[1]) if module is not None else None
    return (place[0], statement) if isinstance(statement, ast.ClassDef) else None


def _of_constructor(release: Release, definer: str, statement: ast.ClassDef, depth: int) -> Shape:
    """The parameters with which a class is called, as its own `__init__` or `__new__` or that of a base has them."""
    for name in ("__init__", "__new__"):
        # Of several, all but the last are overloads.
        for part in reversed(statement.body):
            if isinstance(part, ast.FunctionDef) and part.name == name:
                return _of_function(part, 1)
    bases = list(_bases(release, definer, statement)) if depth < 8 else [None]
    is_data = _dataclass_of(statement) is not None
    is_named = any((_dotted(base) or "").rpartition(".")[2] == "NamedTuple" for base in statement.bases)
    fields = _fields(statement)
    of_module = _module_fields(release, definer, statement, 0)
    if is_named:
        return _of_fields(fields)
    if is_data and None not in bases:
        return _of_data(release, definer, statement, depth)
    if of_module is not None:
        # Where `parent` and `name` stand, and that by position, nobody says.
        shape = _of_fields(of_module)
        return replace(shape, keywords={**(shape.keywords or {}), "name": "None", "parent": ""})
    if len(bases) == 1 and bases[0] is not None and not is_data and not fields:
        return _of_constructor(release, *bases[0], depth + 1)
    is_plain = not (bases or fields or statement.decorator_list or statement.keywords)
    return Shape({}, ()) if is_plain else Shape()


def _of_fields(fields: Mapping[str, ast.expr | None]) -> Shape:
    required = frozenset(name for name, value in fields.items() if value is None)
    return Shape({name: _default(value) for name, value in fields.items()}, tuple(fields), required=required)


def _dataclass_of(statement: ast.ClassDef) -> ast.expr | None:
    """The decorator that makes a class one of data, None if it is none."""
    for each in statement.decorator_list:
        name = _dotted(each.func if isinstance(each, ast.Call) else each) or ""
        if name.rpartition(".")[2] == "dataclass":
            return each
    return None


def _of_data(release: Release, definer: str, statement: ast.ClassDef, depth: int) -> Shape:
    """The fields of a class of data, those of its bases first; some are passed by name alone."""
    bases = [base for base in _bases(release, definer, statement) if base is not None]
    shapes = [_of_data(release, *base, depth + 1) for base in reversed(bases) if depth < 8]
    decorator = _dataclass_of(statement)
    own = _of_fields(_fields(statement)) if decorator is not None else Shape({}, ())
    if isinstance(decorator, ast.Call) and any(each.arg == "kw_only" for each in decorator.keywords):
        own = replace(own, order=())
    keywords: dict[str, str] = {}
    order: dict[str, None] = {}
    for shape in (*shapes, own):
        keywords |= shape.keywords or {}
        order |= dict.fromkeys(shape.order or ())
    asked = {name for shape in (*shapes, own) for name in shape.required if not keywords[name]}
    return Shape(keywords, tuple(order), required=frozenset(asked))


def _fields(statement: ast.ClassDef) -> dict[str, ast.expr | None]:
    """The annotated names in the body of a class, with their defaults."""
    return {
        part.target.id: part.value
        for part in statement.body
        if isinstance(part, ast.AnnAssign)
        and isinstance(part.target, ast.Name)
        and "ClassVar" not in ast.unparse(part.annotation)
    }


def _module_fields(
    release: Release, definer: str, statement: ast.ClassDef, depth: int
) -> dict[str, ast.expr | None] | None:
    """The fields of a module of linen with those of its bases, which stand before; None if it is none."""
    found: dict[str, ast.expr | None] | None = None
    for base in reversed(list(_bases(release, definer, statement))) if depth < 8 else ():
        if base is None:
            return None
        if base[1].name == "Module" and ".linen" in base[0]:
            found = found or {}
        else:
            inherited = _module_fields(release, *base, depth + 1)
            found = {**(found or {}), **inherited} if inherited is not None else found
    return {**found, **_fields(statement)} if found is not None else None


def _members(release: Release, definer: str, statement: ast.ClassDef, depth: int) -> tuple[frozenset[str], bool]:
    """The public attributes of a class, as its body, its methods and its bases show them, and whether they are all."""
    found: set[str] = set()
    is_all = True
    for part in statement.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(part.name)
            is_all = is_all and part.name not in ("__getattr__", "__getattribute__")
        for node in ast.walk(part):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _dotted(node.value) == "self":
                found.add(node.attr)
        targets = (
            part.targets if isinstance(part, ast.Assign) else [part.target] if isinstance(part, ast.AnnAssign) else []
        )
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    for base in _bases(release, definer, statement):
        inherited, are_all = _members(release, *base, depth + 1) if base is not None and depth < 8 else ((), False)
        is_all = is_all and are_all
        found.update(inherited)
    return frozenset(each for each in found if not each.startswith("_")), is_all


def _array_members(release: Release) -> frozenset[str]:
    """The members of arrays."""
    found: set[str] = set()
    files = set(release.archive.namelist())
    for file, own in _ARRAY_CLASSES:
        path = f"jax/_src/{file}"
        for node in ast.walk(ast.parse(release.archive.read(path))) if path in files else ():
            if isinstance(node, ast.ClassDef) and node.name == own:
                found |= {part.name for part in node.body if isinstance(part, ast.FunctionDef) and not _raises(part)}
                annotated = (part.target for part in node.body if isinstance(part, ast.AnnAssign))
                found |= {target.id for target in annotated if isinstance(target, ast.Name)}
    for table in _ARRAY_TABLES:
        module = release.module(table)
        for name, statement in (module.defined if module is not None else {}).items():
            if name.startswith(("_array_", "_impl_only_")) and isinstance(statement, ast.Assign | ast.AnnAssign):
                keys = statement.value.keys if isinstance(statement.value, ast.Dict) else []
                found |= {str(key.value) for key in keys if isinstance(key, ast.Constant)}
    return frozenset(each for each in found if not each.startswith("_"))


def _raises(function: ast.FunctionDef) -> bool:
    """Whether all that a function does is to say that it is gone."""
    body = [part for part in function.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
    raised = body[0].exc if body and isinstance(body[0], ast.Raise) else None
    return isinstance(raised, ast.Call) and _dotted(raised.func) == "AttributeError"


def _dotted(node: ast.expr) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(parts))) if isinstance(node, ast.Name) else None


def _flags(tree: ast.Module) -> dict[str, str]:
    """The flags that a module defines, with the text of their defaults."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        maker = (_dotted(node.func) or "").rpartition(".")[2]
        if not (maker.endswith(_FLAG_MAKERS) or maker.startswith(_FLAG_PREFIXES)):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        name = given.get("name", node.args[0] if node.args else None)
        default = given.get("default", node.args[1] if len(node.args) > 1 else None)
        if isinstance(name, ast.Constant) and str(name.value).startswith(("jax_", "flax_")):
            found[str(name.value)] = _flag_default(default)
    return found


def _flag_default(node: ast.expr | None) -> str:
    """The default of a flag, which may be asked from the environment: `bool_env("JAX_ARRAY", True)`."""
    if isinstance(node, ast.Call) and len(node.args) == 2:
        return ast.unparse(node.args[1])
    return _default(node)


# Compare the releases

Row = dict[str, Any]


def part_rows(releases: Mapping[str, Parts]) -> Iterator[Row]:
    """A row for each part that went while its function or class stayed, and for each change of places and flags."""
    last = releases[list(releases)[-1]]
    offered = set().union(*(parts.public for parts in releases.values()))
    homes = {
        name: place
        for place, names in last.places.items()
        for name in names
        if name in offered or name.rpartition(".")[0] in offered
    }
    members = [shape.seen for shape in last.shapes.values()]
    found: dict[tuple[str, str], Row] = {}
    for name in sorted(homes, key=lambda name: (name.count("."), len(name), name)):
        history = _history(name, releases)
        gone = (*_gone_keywords(history), *_gone_members(history, members))
        of_class = {"of_class": True} if last.shapes[name].is_of_class else {}
        changed = (*_changed_places(history), *_new_requirements(history), *_changed_defaults(history))
        for row in (*gone, *({**each, **of_class} for each in changed)):
            same = found.setdefault((homes[name], repr(row)), {**row, "of": []})
            same["of"].append(name)
    yield from sorted(found.values(), key=lambda row: (row["of"][0], repr(row)))
    yield from _flag_rows({version: parts.flags for version, parts in releases.items()})


History = Sequence[tuple[str, Shape]]


def _history(name: str, releases: Mapping[str, Parts]) -> History:
    return [(version, parts.shapes[name]) for version, parts in releases.items() if name in parts.shapes]


def _gone_keywords(history: History) -> Iterator[Row]:
    for part, since in _gone([(version, shape.keywords) for version, shape in history]):
        yield {"keyword": part, "since": since}


def _gone_members(history: History, others: Sequence[frozenset[str]]) -> Iterator[Row]:
    """Members that went. An `only` one is a member of nothing else today, so its name alone tells what it was.

    Of a class that may have others today, they are those of the class itself: its objects `may` have them still, and
    they are told by their names alone if the name is that of another class today.
    """
    last = history[-1][1]
    is_open, is_another = last.members is None, any(shape.own not in ("", last.own) for _, shape in history)
    known = [(version, shape.seen if is_open or shape.members is None else shape.members) for version, shape in history]
    for part, since in _gone(known):
        is_only = "_" in part and len(part) > 8 and not any(part in members for members in others)
        marks = {"only": is_only and (is_another or not is_open), "may": is_open}
        yield {"member": part, "since": since, **{mark: True for mark, is_so in marks.items() if is_so}}


def _gone(values: Sequence[tuple[str, Collection[str] | None]]) -> Iterator[tuple[str, str]]:
    """Parts that the last release does not have, and the first release without them."""
    final = values[-1][1]
    if final is None:
        return
    for part in sorted({part for _, parts in values for part in parts or ()} - set(final)):
        last_with = max(index for index, (_, parts) in enumerate(values) if parts is None or part in parts)
        if not part.startswith("_"):
            yield part, values[last_with + 1][0]


def _changed_places(history: History) -> Iterator[Row]:
    """For each order of before, the first place that means something else today, or is passed by name, if at all."""
    final = history[-1][1].order
    found: list[Row] = []
    for number, (_, before) in enumerate(history[:-1]):
        order = before.order
        if final is None or order is None:
            continue
        later = [(version, shape) for version, shape in history[number + 1 :] if shape.order is not None]
        place, row = _first_moved(order, final), Row()
        if place is not None and place < len(order):
            since = next(version for version, shape in later if _at(shape, place) != order[place])
            more = {"more": True} if history[-1][1].takes_more else {}
            row = {"place": place, "since": since, "was": list(order), "is": list(final), **more}
        elif place is None and len(final) < len(order) and not later[-1][1].takes_more:
            ends = (version for version, shape in later if _at(shape, len(final)) is None and not shape.takes_more)
            row = {"named": len(final), "since": next(ends), "was": list(order)}
        if row and not any(_covers(other, row) for other in found):
            found = [*(other for other in found if not _covers(row, other)), row]
    yield from found


def _at(shape: Shape, place: int) -> str | None:
    """The parameter at a place, None if there is none."""
    assert shape.order is not None
    return shape.order[place] if place < len(shape.order) else None


def _covers(row: Row, other: Row) -> bool:
    """Whether one row says of calls with as many arguments, or fewer, what another one says."""
    return {**row, "was": []} == {**other, "was": []} and row["was"][: len(other["was"])] == other["was"]


def _first_moved(before: Sequence[str], after: Sequence[str]) -> int | None:
    """The first place that means something else; one whose parameter has only another name does not."""
    both = {*before} & {*after}
    pairs = enumerate(zip(before, after, strict=False))
    return next((place for place, (old, new) in pairs if old != new and both & {old, new}), None)


def _new_requirements(history: History) -> Iterator[Row]:
    """Parameters that a call has to give, and had not to before, each with its place if it has one."""
    final = history[-1][1]
    for (_, before), (version, after) in itertools.pairwise(history):
        if before.order is None or before.takes_more or after.order is None or final.order is None:
            continue
        if before.keywords is None:
            continue
        # Where there were other parameters to give in its place, those are told.
        has_others = not set(before.keywords) <= set(final.keywords or before.keywords)
        known = set(before.keywords) if has_others else set()
        for name in sorted((after.required - before.required) & final.required - known):
            place = after.order.index(name) if name in after.order else None
            same = before.order[place] if place is not None and place < len(before.order) else None
            is_renamed = same in before.required and same not in after.order and name not in before.order
            if not is_renamed:
                yield {
                    "required": name,
                    "since": version,
                    "at": final.order.index(name) if name in final.order else None,
                }


def _changed_defaults(history: History) -> Iterator[Row]:
    """Parameters whose default was written out and is another today, each with its place if it has one."""
    final = history[-1][1]
    for name, today in (final.keywords or {}).items() if final.order is not None else ():
        known = [(version, shape.keywords[name]) for version, shape in history if name in (shape.keywords or {})]
        others = [(before, since) for (_, before), (since, after) in itertools.pairwise(known) if before != after]
        # Since the last release in which it came to be what it is.
        before, since = others[-1] if others else ("", "")
        if _is_written_out(before) and today not in ("", "None") and not _is_same(before, today):
            place = final.order.index(name) if name in final.order else None
            yield {"default": name, "since": since, "was": before, "is": today, "at": place}


def _is_written_out(default: str) -> bool:
    """Whether a default is a number or a text, and no choice that is made later."""
    try:
        return bool(default) and ast.literal_eval(default) is not None
    except (SyntaxError, ValueError):
        return False


def _is_same(before: str, after: str) -> bool:
    return _is_written_out(after) and bool(ast.literal_eval(before) == ast.literal_eval(after))


def moved_rows(releases: Mapping[str, Parts], moves: Mapping[str, str]) -> Iterator[Row]:
    """A row for each moved name that could be called in a way in which the new one cannot: how that is called.

    The first `same` arguments by position are those of before, all of them if that is missing. Keywords in `lost` are
    gone; if there were any, only those of `only` are left. `required` are parameters to give, with their places.
    """
    last = releases[list(releases)[-1]]
    for old, new in sorted(moves.items()):
        today = last.shapes.get(new)
        if today is None or today.order is None:
            continue
        # A name of a table is no definition, and has that of the new one.
        shapes = [parts.shapes[old] for parts in releases.values() if old in parts.shapes]
        shapes = shapes or [parts.shapes[new] for parts in releases.values() if new in parts.shapes]
        before = [shape for shape in shapes if shape.order is not None]
        same = [count for shape in before if (count := _same_places(shape, today)) is not None]
        known = None if today.keywords is None else set(today.keywords)
        lost = {key for shape in before for key in shape.keywords or ()} - known if known is not None else set()
        took_any = known is not None and any(shape.keywords is None for shape in before)
        asks = {row["required"] for shape in before for row in _new_requirements([("", shape), ("", today)])}
        if same or lost or took_any or asks:
            yield {
                "moved": old,
                "to": new,
                **({"same": min(same)} if same else {}),
                "lost": sorted(lost),
                **({"only": sorted(known or ())} if took_any else {}),
                "required": {name: today.order.index(name) if name in today.order else None for name in sorted(asks)},
            }


def _same_places(before: Shape, today: Shape) -> int | None:
    """How many arguments by position mean what they did, None if all do."""
    assert before.order is not None
    assert today.order is not None
    moved = _first_moved(before.order, today.order)
    if moved is not None:
        return moved
    ends = not today.takes_more and (before.takes_more or len(today.order) < len(before.order))
    return min(len(before.order), len(today.order)) if ends else None


def _flag_rows(releases: Mapping[str, Mapping[str, str]]) -> Iterator[Row]:
    """Flags that went, with their last default, and those whose default was switched."""
    versions = list(releases)
    last = releases[versions[-1]]
    for flag in sorted({flag for flags in releases.values() for flag in flags}):
        there = [version for version in versions if flag in releases[version]]
        if flag not in last:
            gone = versions[versions.index(there[-1]) + 1]
            yield {"flag": flag, "since": gone, "default": releases[there[-1]][flag].strip("'")}
            continue
        for before, after in reversed(list(itertools.pairwise(there))):
            old, new = releases[before][flag].strip("'"), releases[after][flag].strip("'")
            if old != new and {old, new} <= {"True", "False"}:
                yield {"flag": flag, "since": after, "was": old, "is": new}
                break


# Prints, for each row of a list in JSON, whether its part is there, or as it was; null where nobody knows.
LOOK = """
import importlib, inspect, json, logging, sys, warnings
logging.disable()
warnings.simplefilter("ignore")
def find(name):
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
def has(row):
    try:
        found = find(row["of"][0])
        if "member" in row:
            return hasattr(found, row["member"])
        if isinstance(found, type):
            # The signature of a class may be that of its metaclass.
            found = found.__new__ if found.__init__ is object.__init__ else found.__init__
        given = [each for each in inspect.signature(found).parameters.values() if each.name not in ("self", "cls")]
    except (AttributeError, TypeError, ValueError):
        return None
    names = {each.name: each for each in given}
    if "default" in row:
        asked = names.get(row["default"])
        return asked is None or repr(asked.default) == row["was"]
    kinds = {each.kind for each in given}
    by_position = [each.name for each in given if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if "required" in row:
        asked = names.get(row["required"])
        return asked is None or asked.default is not asked.empty
    if "named" in row:
        return len(by_position) > row["named"] or inspect.Parameter.VAR_POSITIONAL in kinds
    if "place" in row:
        return row["was"][row["place"]] == (by_position + [None] * 99)[row["place"]]
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return True
    return row["keyword"] in names and names[row["keyword"]].kind is not inspect.Parameter.POSITIONAL_ONLY
for row in json.load(sys.stdin):
    print(json.dumps(has(row) if "of" in row else None))
"""
