"""What `tools/index_names.py` reads beside names: keywords and members of public functions and classes, and flags.

A part is gone if its function or class is still there and does not have it any more. A function that takes
`**keywords`, and a class with a base out of view, may have any part, so nothing is said of them.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    """The parts of a function or class in one release.

    Attributes:
        keywords: The parameters that can be passed by name, with the text of their default; None if any can.
        order: The parameters that can be passed by position.
        members: The public attributes of a class; None if there may be others.
    """

    keywords: Mapping[str, str] | None = None
    order: tuple[str, ...] | None = None
    members: frozenset[str] | None = None


@dataclass
class Parts:
    """The parts of the public names of one release, by the place of their definition, and the defaults of flags."""

    shapes: dict[str, Shape] = field(default_factory=dict)
    public: dict[str, list[str]] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)


def parts_of(release: Release) -> Parts:
    """The parts of a release."""
    found = Parts()
    for name, named in release.names.items():
        if named.state not in ("there", "warns"):
            continue
        home, _, own = name.rpartition(".")
        if home not in release.paths:
            continue
        definer, local = release.resolve(home, own)
        module = release.module(definer)
        statement = module.defined.get(local) if module is not None else None
        if name == _ARRAY:
            found.public.setdefault(f"{definer}.{local}", []).append(name)
            found.shapes[name] = Shape(members=_array_members(release))
        elif module is not None and isinstance(statement, Statement):
            found.public.setdefault(f"{definer}.{local}", []).append(name)
            found.shapes[name] = _shape(release, definer, statement)
    for path in release.paths.values():
        data = release.archive.read(path)
        if b"_state(" in data or b"_flag(" in data or b"DEFINE_" in data:
            found.flags |= _flags(ast.parse(data))
    return found


def _shape(release: Release, definer: str, statement: Statement) -> Shape:
    if isinstance(statement, ast.FunctionDef):
        return _of_function(statement, 0)
    keywords, order = _of_constructor(release, definer, statement, 0)
    return Shape(keywords, order, _members(release, definer, statement, 0))


def _of_function(function: ast.FunctionDef, skip: int) -> Shape:
    """The parameters of a function, without the first `skip`."""
    given = function.args
    if given.kwarg is not None:
        return Shape()
    places = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(places) - len(given.defaults)) + [*given.defaults]
    texts = {place.arg: _default(default) for place, default in zip(places, defaults, strict=True)}
    texts |= {place.arg: _default(default) for place, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)}
    own = [place.arg for place in places[skip:]]
    by_position = {place.arg for place in (*given.posonlyargs, *places[:skip])}
    return Shape({key: text for key, text in texts.items() if key not in by_position}, tuple(own))


def _default(node: ast.expr | None) -> str:
    return ast.unparse(node) if node is not None else ""


def _bases(release: Release, definer: str, statement: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef] | None]:
    """The base classes of a class, None for one that is out of view."""
    for base in statement.bases:
        dotted = _dotted(base.value if isinstance(base, ast.Subscript) else base)
        if dotted in ("object", "Generic", "typing.Generic", "abc.ABC", "ABC", "Protocol", "Protocol"):
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


def _of_constructor(
    release: Release, definer: str, statement: ast.ClassDef, depth: int
) -> tuple[Mapping[str, str] | None, tuple[str, ...] | None]:
    """The parameters with which a class is called, as its own `__init__` or `__new__` or that of a base has them."""
    for name in ("__init__", "__new__"):
        for part in statement.body:
            if isinstance(part, ast.FunctionDef) and part.name == name:
                shape = _of_function(part, 1)
                return shape.keywords, shape.order
    decorators = [_dotted(each.func if isinstance(each, ast.Call) else each) or "" for each in statement.decorator_list]
    bases = list(_bases(release, definer, statement)) if depth < 8 else [None]
    fields = {
        part.target.id: _default(part.value)
        for part in statement.body
        if isinstance(part, ast.AnnAssign)
        and isinstance(part.target, ast.Name)
        and "ClassVar" not in ast.unparse(part.annotation)
    }
    is_data = any(each.rpartition(".")[2] in ("dataclass", "chex.dataclass") for each in decorators)
    is_named = any((_dotted(base) or "").rpartition(".")[2] == "NamedTuple" for base in statement.bases)
    is_module = any(base is not None and base[1].name == "Module" and ".linen" in base[0] for base in bases)
    if is_named or (is_data and not bases):
        return fields, tuple(fields)
    if is_module:
        return {**fields, "name": "None", "parent": ""}, None
    if len(bases) == 1 and bases[0] is not None and not is_data and not fields:
        return _of_constructor(release, *bases[0], depth + 1)
    return None, None


def _members(release: Release, definer: str, statement: ast.ClassDef, depth: int) -> frozenset[str] | None:
    """The public attributes of a class, as its body, its methods and its bases show them."""
    found: set[str] = set()
    for part in statement.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(part.name)
            if part.name in ("__getattr__", "__getattribute__"):
                return None
        for node in ast.walk(part):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _dotted(node.value) == "self":
                found.add(node.attr)
        targets = (
            part.targets if isinstance(part, ast.Assign) else [part.target] if isinstance(part, ast.AnnAssign) else []
        )
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    for base in _bases(release, definer, statement):
        inherited = _members(release, *base, depth + 1) if base is not None and depth < 8 else None
        if inherited is None:
            return None
        found |= inherited
    return frozenset(each for each in found if not each.startswith("_"))


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
    homes = {name: place for place, names in last.public.items() for name in names}
    members = [shape.members or frozenset() for shape in last.shapes.values()]
    found: dict[tuple[str, str], Row] = {}
    for name in sorted(homes, key=lambda name: (name.count("."), len(name), name)):
        history = [(version, parts.shapes[name]) for version, parts in releases.items() if name in parts.shapes]
        for row in (*_gone_keywords(history), *_gone_members(history, members), *_changed_places(history)):
            same = found.setdefault((homes[name], repr(row)), {**row, "of": []})
            same["of"].append(name)
    yield from sorted(found.values(), key=lambda row: (row["of"][0], repr(row)))
    yield from _flag_rows({version: parts.flags for version, parts in releases.items()})


History = Sequence[tuple[str, Shape]]


def _gone_keywords(history: History) -> Iterator[Row]:
    for part, since in _gone([(version, shape.keywords) for version, shape in history]):
        yield {"keyword": part, "since": since}


def _gone_members(history: History, others: Sequence[frozenset[str]]) -> Iterator[Row]:
    """Members that went. An `only` one is a member of nothing else today, so its name alone tells what it was."""
    for part, since in _gone([(version, shape.members) for version, shape in history]):
        is_only = "_" in part and len(part) > 8 and not any(part in members for members in others)
        yield {"member": part, "since": since, **({"only": True} if is_only else {})}


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
    """Parameters that another one took the place of, and those that are passed by name alone today."""
    final = history[-1][1]
    if final.order is None:
        return
    for (_, before), (version, after) in itertools.pairwise(history):
        if before.order is None or after.order is None or before.order == after.order:
            continue
        pairs = list(zip(before.order, after.order, strict=False))
        both = {*before.order} & {*after.order}
        changed = (place for place, (old, new) in enumerate(pairs) if old != new and both & {old, new})
        moved = next(changed, None)
        if moved is not None:
            yield {"place": moved, "since": version, "was": list(before.order), "is": list(after.order)}
        elif len(after.order) < len(before.order) and pairs == list(zip(after.order, after.order, strict=True)):
            rest = before.order[len(after.order) :]
            if final.keywords is not None and set(rest) <= set(final.keywords) - set(final.order):
                yield {"named": len(after.order), "since": version, "was": list(before.order)}


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


# Prints, for each row of a list in JSON, whether its part is there; null where the package is not installed.
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
        given = inspect.signature(found).parameters
    except (AttributeError, TypeError, ValueError):
        return None
    if any(each.kind is each.VAR_KEYWORD for each in given.values()):
        return True
    return row["keyword"] in given and given[row["keyword"]].kind is not inspect.Parameter.POSITIONAL_ONLY
for row in json.load(sys.stdin):
    print(json.dumps(has(row) if "member" in row or "keyword" in row else None))
"""
