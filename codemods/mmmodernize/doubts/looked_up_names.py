"""Old names that stand as text for themselves, where a module is asked for them. They are reported, not edited."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from mmmodernize.modules.passed_modules import PassedModules, module_by_name, text_of
from mmmodernize.modules.project_names import ToldNames
from mmmodernize.names.name_index import ROOTS, old_names
from mmmodernize.sites.decision import left_at, refusal_of
from mmmodernize.sites.site import ModernizeContext
from mmmodernize.sites.version_guards import guard_of
from mmmodernize.text.run_text import RunTexts, text_in, texts_of
from mmmodernize.text.text_patterns import says_part, text_pattern
from mmrewrite.project.uses import ModuleUses
from mmrewrite.results import LeftAlone, Refusal
from mmrewrite.source.names import dotted_name

_WORDS_OF_TEXT = re.compile(r"[^\W\d]\w*")

# What patches and lookups call the name.
_NAME_WORDS = frozenset(("attribute", "name"))

# What looks its first argument up: of a dictionary, and of a module.
_BY_METHOD = frozenset(("get", "pop", "__getitem__", "__getattr__", "__getattribute__", "__delattr__", "__setattr__"))


def looked_up(module: ModuleUses, context: ModernizeContext) -> Iterator[LeftAlone | Refusal]:
    """Old names that stand as text for themselves, as in `getattr(jax, "tree_map")` and `vars(jax)["tree_map"]`.

    A `getattr` of a module that is seen, for a name that is gone, raises and is refused.
    """
    names, passed = context.analysis(ToldNames).names, context.analysis(PassedModules)
    told: dict[ast.AST, str] = {}
    for node in module.strings:
        full = _old_name(homes_asked(module, node, passed.places), str(node.value), names)
        if full is not None:
            advice = "write what takes its place" if full in context.owners else "see what it means today"
            told[node] = f"it is `{full}`, looked up by its name; {advice}"
    importers = {use.node for use in module.uses(("importlib.import_module", "pkgutil.resolve_name"))}
    for call in module.nodes_of(ast.Call):
        name = module_by_name(module, call) if call.func in importers else None
        if name in names and not any(isinstance(each, ast.Constant) and each.value == name for each in call.args):
            told[call] = f"it is `{name}`, looked up by its name; write what takes its place"
        told |= dict(_of_patched_keywords(module, passed, call, names))
    for call in context.analysis(RunTexts).calls(module):
        told |= dict(_in_run_text(module, call, names))
    told |= dict(_of_computed_names(module, passed, names))
    told |= dict(_of_getattr_as_a_value(module, passed, names))
    told |= dict(_of_added_globals(module, passed, names))
    for name, store in context.flow.stores.in_module(module):
        if name in ROOTS and store.owner() == "":
            told[store.node] = f"`{name}` is replaced here; see that this has the names of today"
    for place, reason in told.items():
        if guard_of(module, place) is None and isinstance(place, ast.expr):
            name = _raising(module, place)
            left = left_at(module, place, reason, name or "")
            yield left if name is None else refusal_of(left, "report_old_names")


def _raising(module: ModuleUses, place: ast.expr) -> str | None:
    """The name that is gone and that a `getattr` without a default asks a module for by this text."""
    match module.parents.get(place):
        case ast.Call(args=[owner, ast.Constant(value=str(text)) as asked]) as call if asked is place:
            name = f"{module.full_name(owner)}.{text}"
            known = old_names().get(name) if module.full_name(call.func) == "builtins.getattr" else None
            return name if known is not None and known.is_gone else None
        case _:
            return None


def _old_name(homes: Iterable[str], rest: str, names: Collection[str]) -> str | None:
    """The old name that `rest` is in one of some modules, the first in order if it is one in several."""
    return min((full for home in homes if (full := f"{home}.{rest}") in names), default=None)


def homes_asked(module: ModuleUses, node: ast.expr, places: Iterable[str]) -> Iterator[str]:
    """The modules in which a string is looked up; with a default, code copes without.

    An expression that is not seen to be a module may be any of `places`.
    """
    holder = module.parents.get(node)
    if isinstance(holder, ast.Subscript) and holder.slice is node:
        yield from _of_table(module, holder.value, places)
    elif isinstance(holder, ast.keyword) and holder.arg in _NAME_WORDS:
        # As in `patch.object(target=jax, attribute="tree_map")`.
        call = module.parents[holder]
        for target in _targets(call) if isinstance(call, ast.Call) else ():
            yield from _modules(module, target)
    elif isinstance(holder, ast.Call) and node in holder.args:
        function = module.full_name(holder.func)
        if function in ("operator.attrgetter", "operator.itemgetter") or (
            function == "operator.methodcaller" and holder.args[0] is node
        ):
            yield from places
        elif function == "builtins.hasattr" or (function == "builtins.getattr" and len(holder.args) > 2):
            return
        elif isinstance(holder.func, ast.Attribute) and holder.args[0] is node and holder.func.attr in _BY_METHOD:
            yield from _of_table(module, holder.func.value, places)
            yield from _modules(module, holder.func.value)
        elif len(holder.args) > 1 and holder.args[1] is node:
            yield from _modules(module, holder.args[0], places if function == "builtins.getattr" else ())


def _targets(call: ast.Call) -> Sequence[ast.expr]:
    """What a call is given first, or as the object that it changes."""
    return [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg in ("in_dict", "target"))]


def _of_table(module: ModuleUses, table: ast.expr, places: Iterable[str]) -> Iterator[str]:
    """The modules of whose names a table is: `jax.__dict__`, `vars(jax)`, or a name that is bound to one once."""
    if isinstance(table, ast.Name):
        binding = module.facts.names.binding(table.id, module.scope_of(table))
        table = binding.value if binding is not None and binding.value is not None else table
    if isinstance(table, ast.Attribute) and table.attr == "__dict__":
        yield from _modules(module, table.value, places)
    elif isinstance(table, ast.Call) and table.args and module.full_name(table.func) == "builtins.vars":
        yield from _modules(module, table.args[0], places)


def _modules(module: ModuleUses, node: ast.expr, places: Iterable[str] = ()) -> Iterator[str]:
    """The module that an expression is, or else all that it may be."""
    found = module.full_name(node) or module_by_name(module, node)
    if found is not None:
        yield found
    else:
        yield from places


def _of_computed_names(
    module: ModuleUses, passed: PassedModules, names: Collection[str]
) -> Iterator[tuple[ast.AST, str]]:
    """The names that a computed lookup may ask a module for: what its known parts match, else this module's strings."""
    for node in module.nodes_of(ast.Call, ast.Subscript):
        for asked in asked_for(module, node):
            pattern = says_part(text_pattern(module, asked))
            if pattern is not None:
                yield from _of_pattern(module, node, asked, pattern, passed, names)
            else:
                yield from _of_strings(module, asked, passed, names)


def _of_pattern(
    module: ModuleUses,
    node: ast.AST,
    asked: ast.expr,
    pattern: re.Pattern[str],
    passed: PassedModules,
    names: Collection[str],
) -> Iterator[tuple[ast.AST, str]]:
    """The pattern of a name that is put together of known and unknown parts."""
    homes = list(dict.fromkeys(homes_asked(module, asked, passed.places)))
    found = [name for home in homes for name in names if _is_in(name, home, pattern)]
    if isinstance(node, ast.Call) and not homes and takes_full_names(module, node):
        found = [name for name in names if any(map(pattern.fullmatch, _spellings(name)))]
    if found:
        yield node, f"it may look up an old name, such as `{min(found)}`; write the names of today, or ask for each"


def _of_strings(
    module: ModuleUses, asked: ast.expr, passed: PassedModules, names: Collection[str]
) -> Iterator[tuple[ast.AST, str]]:
    """Strings of a module that looks up names of JAX or its libraries, none of whose parts can be seen."""
    homes = passed.homes.intersection(homes_asked(module, asked, ()))
    for node in module.strings if homes else ():
        # What stands alone, as a docstring does, is no value that can be asked for.
        for word in () if isinstance(module.parents.get(node), ast.Expr) else words_of(node):
            full = _old_name(homes, word, names)
            if full is not None:
                home = full.removesuffix(f".{word}")
                yield (
                    node,
                    f"it may be `{full}`, as line {asked.lineno} looks names up in `{home}`; write that of today",
                )


# The last parts of functions that are given a name; most calls are of others.
_LOOK_UP = frozenset(
    (
        *("attrgetter", "delattr", "getattr", "import_module", "itemgetter", "methodcaller", "object", "patch"),
        *("resolve_name", "setattr", "__import__", *_BY_METHOD),
    )
)


def asked_for(module: ModuleUses, node: ast.AST) -> Iterator[ast.expr]:
    """What may be the text of a name in a lookup, where it is no text itself."""
    if isinstance(node, ast.Subscript):
        is_table = isinstance(node.value, ast.Name | ast.Call) or (
            isinstance(node.value, ast.Attribute) and node.value.attr == "__dict__"
        )
        if is_table and not isinstance(node.slice, ast.Constant | ast.Slice | ast.Tuple | ast.UnaryOp):
            yield node.slice
    elif isinstance(node, ast.Call):
        own = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        is_renamed = len(node.args) == 2 and isinstance(node.func, ast.Name) and own not in _LOOK_UP
        if own in _LOOK_UP or (is_renamed and module.full_name(node.func) == "builtins.getattr"):
            given = [*node.args[:2], *(keyword.value for keyword in node.keywords if keyword.arg in _NAME_WORDS)]
            yield from (each for each in given if not isinstance(each, ast.Constant))


def _spellings(name: str) -> Iterator[str]:
    """A full name, also as `pkgutil.resolve_name` takes it, with a colon behind the module."""
    yield name
    yield from (f"{name[: dot.start()]}:{name[dot.end() :]}" for dot in re.finditer(r"\.", name))


def _is_in(name: str, home: str, pattern: re.Pattern[str]) -> bool:
    return name.startswith(f"{home}.") and pattern.fullmatch(name, len(home) + 1) is not None


# What takes the full name of a module or of something in one.
_BY_FULL_NAME = frozenset(
    ("importlib.import_module", "pkgutil.resolve_name", "builtins.__import__", "unittest.mock.patch", "mock.patch")
)


def takes_full_names(module: ModuleUses, call: ast.Call) -> bool:
    """Whether a call takes a full name; `monkeypatch.setattr` and `mocker.patch` do where they are called so."""
    if module.full_name(call.func) in _BY_FULL_NAME:
        return True
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in ("delattr", "patch", "setattr")
    return is_method and module.full_name(call.func) is None


def words_of(string: ast.Constant) -> Sequence[str]:
    """The words of a string that may be a list of names."""
    text = str(string.value)
    words = text.replace(",", " ").split() if len(text) < _LONG else []
    return words if all(word.replace(".", "_").isidentifier() and word[-1] != "." for word in words) else ()


# Longer texts are prose, and no list of names, as are those with other signs.
_LONG = 400


def _of_getattr_as_a_value(
    module: ModuleUses, passed: PassedModules, names: Collection[str]
) -> Iterator[tuple[ast.AST, str]]:
    """Strings that `map(getattr, ...)` or `partial(getattr, jax)` may look up."""
    for head in module.heads.get("getattr", ()):
        is_given = isinstance(module.parents[head], ast.Call) and module.call_at(head) is None
        if not is_given or module.full_name(head) != "builtins.getattr":
            continue
        for node in module.strings:
            full = _old_name(passed.places, str(node.value), names)
            if full is not None:
                yield node, f"it may be `{full}`, as line {head.lineno} hands `getattr` on; write that of today"


def _of_patched_keywords(
    module: ModuleUses, passed: PassedModules, call: ast.Call, names: Collection[str]
) -> Iterator[tuple[ast.AST, str]]:
    """The names that `mock.patch.multiple(jax, tree_map=...)` sets, of a module or of a text with its name.

    So do `mock.patch.dict(jax.__dict__, tree_map=...)` and `vars(jax).update(tree_map=...)`, also from dictionaries.
    """
    homes: list[str] = []
    if isinstance(call.func, ast.Attribute):
        own = call.func.attr
    else:
        named = module.full_name(call.func) if call.args and call.keywords else None
        own = named.rpartition(".")[2] if named is not None and named != "builtins.dict" else ""
    if own in ("multiple", "dict"):
        for target in _targets(call):
            text = text_of(module, target)
            found = module.full_name(target) or module_by_name(module, target) or text
            homes += [found.removesuffix(".__dict__")] if found is not None else []
            homes += _of_table(module, target, passed.places)
    elif own in ("update", "setdefault") and isinstance(call.func, ast.Attribute):
        homes += _of_table(module, call.func.value, passed.places)
    if not passed.homes.isdisjoint(homes):
        for key, value in _keys(module, [*call.args, *call.keywords]):
            full = _old_name(homes, key, names)
            if full is not None:
                yield value, f"it sets `{full}`; write what takes its place"


def _keys(module: ModuleUses, given: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """The keys of arguments, of dictionaries and of pairs, with where each stands."""
    for each in given:
        match each:
            case ast.keyword(arg=str(key), value=value):
                if key in ("in_dict", "values"):
                    yield from _keys(module, [value])
                yield key, value
            case ast.keyword(value=value) | ast.Starred(value=value):
                yield from _keys(module, [value])
            case ast.Dict(keys=keys, values=values):
                for node, value in zip(keys, values, strict=True):
                    if node is None:
                        yield from _keys(module, [value])
                    elif (text := text_of(module, node)) is not None:
                        yield text, node
            case ast.List(elts=pairs) | ast.Tuple(elts=pairs) | ast.Set(elts=pairs):
                for pair in pairs:
                    first = pair.elts[0] if isinstance(pair, ast.Tuple | ast.List) and pair.elts else None
                    if first is not None and (text := text_of(module, first)) is not None:
                        yield text, first
            case ast.Call(func=ast.Name(id="dict"), args=args, keywords=keywords):
                yield from _keys(module, [*args, *keywords])
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                yield from _keys(module, [left, right])
            case ast.Name(id=name):
                binding = module.facts.names.binding(name, module.scope_of(each))
                if binding is not None and isinstance(binding.value, ast.Dict | ast.Call):
                    yield from _keys(module, [binding.value])
            case _:
                pass


def _of_added_globals(
    module: ModuleUses, passed: PassedModules, names: Collection[str]
) -> Iterator[tuple[ast.AST, str]]:
    """Names that nothing binds, in a module that writes names into its table by `globals().update(vars(jax))`."""
    places = adds_names(module)
    if not places:
        return
    for head, chain in module.chains:
        if module.scope_of(head).owner(head.id) is None and module.full_name(head) is None:
            for node in reversed(chain):
                full = _old_name(passed.homes, dotted_name(node) or "", names)
                if full is not None:
                    yield node, f"it may be `{full}`, as line {places[0]} adds names to the module; import it by name"
                    break


def adds_names(module: ModuleUses) -> Sequence[int]:
    """The lines where a module reads or writes its own table of names, as by `globals().update(vars(jax))`."""
    return [
        call.lineno
        for call in module.nodes_of(ast.Call)
        if not call.args
        and isinstance(module.parents[call], ast.Attribute | ast.Subscript)
        and module.full_name(call.func) in _OWN_TABLES
    ]


_OWN_TABLES = frozenset(f"builtins.{name}" for name in ("globals", "locals", "vars"))


def _in_run_text(module: ModuleUses, call: ast.Call, names: Collection[str]) -> Iterator[tuple[ast.AST, str]]:
    """Words of text that is run, where it is put together of parts or has names that the module imports."""
    homes = module.roots.union(item.name for item in module.imported)
    for part in texts_of(module, call):
        for word in _WORDS_OF_TEXT.findall(text_in(part)):
            full = _old_name(homes, word, names)
            if full is not None:
                yield part, f"it may be `{full}`, in text that is run; write what takes its place"
