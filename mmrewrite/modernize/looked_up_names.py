"""Old names that stand as text for themselves, where a module is asked for them. They are reported, not edited."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from mmrewrite.modernize.analysis.passed_modules import PassedModules, module_by_name
from mmrewrite.modernize.analysis.told_names import ToldNames
from mmrewrite.modernize.names_in_strings import RUN_TEXT
from mmrewrite.modernize.site import ModernizeContext
from mmrewrite.modernize.uses import ModuleUses, dotted_text
from mmrewrite.modernize.version_guards import guard_of
from mmrewrite.results import LeftAlone
from mmrewrite.source.spans import span
from mmrewrite.source.walk import walk

_WORDS_OF_TEXT = re.compile(r"[^\W\d]\w*")

# What looks its first argument up: of a dictionary, and of a module.
_BY_METHOD = frozenset(("get", "pop", "__getitem__", "__getattr__", "__getattribute__", "__delattr__", "__setattr__"))


def looked_up(module: ModuleUses, context: ModernizeContext) -> Iterator[LeftAlone]:
    """Old names that stand as text for themselves, as in `getattr(jax, "tree_map")` and `vars(jax)["tree_map"]`."""
    names, passed = context.analysis(ToldNames).names, context.analysis(PassedModules)
    source = module.facts.source
    told: dict[ast.AST, str] = {}
    for node in module.strings:
        for home in _homes_asked(module, passed, node):
            full = f"{home}.{node.value!s}"
            if full in names:
                advice = "write what takes its place" if full in context.owners else "see what it means today"
                told[node] = f"it is `{full}`, looked up by its name; {advice}"
    for call in module.nodes_of(ast.Call):
        is_import = _name_of(module, call.func) in ("importlib.import_module", "pkgutil.resolve_name")
        name = module_by_name(module, call) if is_import else None
        if name in names and not any(isinstance(each, ast.Constant) and each.value == name for each in call.args):
            told[call] = f"it is `{name}`, looked up by its name; write what takes its place"
        told |= dict(_of_computed_names(module, call, passed, names))
        told |= dict(_in_run_text(module, call, names))
        told |= dict(_of_patched_keywords(module, call, names))
    told |= dict(_of_getattr_as_a_value(module, passed, names))
    told |= dict(_of_added_globals(module, passed, names))
    for place, reason in told.items():
        if guard_of(module, place) is None and isinstance(place, ast.expr):
            position = source.position(span(source, place)[0])
            yield LeftAlone(module.facts.path, *position, ast.unparse(place), reason)


def _homes_asked(module: ModuleUses, passed: PassedModules, node: ast.Constant) -> Iterator[str]:
    """The modules in which a string is looked up, as far as they are seen; with a default, code copes without."""
    holder = module.parents.get(node)
    if isinstance(holder, ast.Subscript) and holder.slice is node:
        yield from _of_table(module, passed, holder.value)
    elif isinstance(holder, ast.Call) and node in holder.args:
        function = _name_of(module, holder.func)
        if function in ("operator.attrgetter", "operator.itemgetter") or (
            function == "operator.methodcaller" and holder.args[0] is node
        ):
            yield from passed.places
        elif function == "builtins.hasattr" or (function == "builtins.getattr" and len(holder.args) > 2):
            return
        elif isinstance(holder.func, ast.Attribute) and holder.args[0] is node and holder.func.attr in _BY_METHOD:
            yield from _of_table(module, passed, holder.func.value)
            yield from _modules(module, passed, holder.func.value, is_lookup=False)
        elif len(holder.args) > 1 and holder.args[1] is node:
            yield from _modules(module, passed, holder.args[0], is_lookup=function == "builtins.getattr")


def _of_table(module: ModuleUses, passed: PassedModules, table: ast.expr) -> Iterator[str]:
    """The modules of whose names a table is: `jax.__dict__`, `vars(jax)`, or a name that is bound to one once."""
    if isinstance(table, ast.Name):
        binding = module.facts.names.binding(table.id, module.scope_of(table))
        table = binding.value if binding is not None and binding.value is not None else table
    if isinstance(table, ast.Attribute) and table.attr == "__dict__":
        yield from _modules(module, passed, table.value)
    elif isinstance(table, ast.Call) and table.args and _name_of(module, table.func) == "builtins.vars":
        yield from _modules(module, passed, table.args[0])


def _modules(module: ModuleUses, passed: PassedModules, node: ast.expr, *, is_lookup: bool = True) -> Iterator[str]:
    """The module that an expression is, or else all that it may be, as the project passes them on."""
    found = _name_of(module, node) or module_by_name(module, node)
    if found is not None:
        yield found
    elif is_lookup:
        yield from passed.places


def _of_computed_names(
    module: ModuleUses, call: ast.Call, passed: PassedModules, names: Collection[str]
) -> Iterator[tuple[ast.AST, str]]:
    """What `getattr(jax, name)` may look up: strings of the module, or names that begin as the text does."""
    if len(call.args) != 2 or _name_of(module, call.func) != "builtins.getattr":
        return
    home, asked = _name_of(module, call.args[0]), call.args[1]
    if home not in passed.homes or isinstance(asked, ast.Constant):
        return
    first = asked.values[0] if isinstance(asked, ast.JoinedStr) and asked.values else None
    first = asked.left if isinstance(asked, ast.BinOp) and isinstance(asked.op, ast.Add) else first
    if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value:
        matching = sorted(name for name in names if name.startswith(f"{home}.{first.value}"))
        if matching:
            yield (
                call,
                f"it may look up an old name, such as `{matching[0]}`; write the names of today, or ask for each",
            )
        return
    for node in module.strings:
        text = str(node.value)
        for word in text.replace(",", " ").split() if node is not asked and len(text) < _LONG else ():
            full = f"{home}.{word}"
            if full in names:
                yield node, f"it may be `{full}`, as line {call.lineno} looks names up in `{home}`; write that of today"


# Longer texts are prose, and no list of names.
_LONG = 400


def _of_getattr_as_a_value(
    module: ModuleUses, passed: PassedModules, names: Collection[str]
) -> Iterator[tuple[ast.AST, str]]:
    """Strings that `map(getattr, ...)` or `partial(getattr, jax)` may look up."""
    for head in module.heads.get("getattr", ()):
        holder = module.parents[head]
        is_given = isinstance(holder, ast.Call) and holder.func is not head
        if not is_given or _name_of(module, head) != "builtins.getattr":
            continue
        for node in module.strings:
            full = next((f"{home}.{node.value!s}" for home in passed.places if f"{home}.{node.value!s}" in names), None)
            if full is not None:
                yield node, f"it may be `{full}`, as line {head.lineno} hands `getattr` on; write that of today"


def _of_patched_keywords(module: ModuleUses, call: ast.Call, names: Collection[str]) -> Iterator[tuple[ast.AST, str]]:
    """The names that `mock.patch.multiple(jax, tree_map=...)` sets."""
    if call.args and _name_of(module, call.func) == "unittest.mock.patch.multiple":
        home = _name_of(module, call.args[0])
        for keyword in call.keywords:
            if f"{home}.{keyword.arg}" in names:
                yield keyword.value, f"it sets `{home}.{keyword.arg}`; write what takes its place"


def _of_added_globals(
    module: ModuleUses, passed: PassedModules, names: Collection[str]
) -> Iterator[tuple[ast.AST, str]]:
    """Names that nothing binds, in a module that writes names into its table by `globals().update(vars(jax))`."""
    calls = [call for call in module.nodes_of(ast.Call) if _name_of(module, call.func) in _OWN_TABLES and not call.args]
    places = [call.lineno for call in calls if isinstance(module.parents[call], ast.Attribute | ast.Subscript)]
    if not places:
        return
    for head, chain in module.chains:
        if module.scope_of(head).owner(head.id) is None and _name_of(module, head) is None:
            for node in reversed(chain):
                rest = dotted_text(node)
                full = next((f"{home}.{rest}" for home in passed.homes if f"{home}.{rest}" in names), None)
                if full is not None:
                    yield node, f"it may be `{full}`, as line {places[0]} adds names to the module; import it by name"
                    break


_OWN_TABLES = frozenset(f"builtins.{name}" for name in ("globals", "locals", "vars"))


def _in_run_text(module: ModuleUses, call: ast.Call, names: Collection[str]) -> Iterator[tuple[ast.AST, str]]:
    """Words of text that is run, where it is put together of parts or has names that the module imports."""
    if _name_of(module, call.func) not in RUN_TEXT:
        return
    homes = {item.name for item in module.imported} | {item.name.partition(".")[0] for item in module.imported}
    for part in walk(call):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            for word in _WORDS_OF_TEXT.findall(part.value):
                full = next((f"{home}.{word}" for home in homes if f"{home}.{word}" in names), None)
                if full is not None:
                    yield part, f"it may be `{full}`, in text that is run; write what takes its place"


def _name_of(module: ModuleUses, node: ast.expr) -> str | None:
    return module.facts.names.resolve(node, module.scope_of(node))
