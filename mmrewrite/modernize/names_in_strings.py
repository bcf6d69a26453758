"""Old names in strings, docstrings and type comments. They are reported, not edited: only the user knows what runs."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterator, Mapping

from mmrewrite.modernize.analysis.passed_modules import PassedModules, module_by_name
from mmrewrite.modernize.analysis.told_names import ToldNames
from mmrewrite.modernize.site import ModernizeContext
from mmrewrite.modernize.uses import ModuleUses, dotted_text
from mmrewrite.modernize.version_guards import guard_of
from mmrewrite.results import LeftAlone
from mmrewrite.source.names import Scope
from mmrewrite.source.spans import span
from mmrewrite.source.walk import walk

_DOTTED = re.compile(r"(?<![\w.])[^\W\d]\w*(?:[.:][^\W\d]\w*)+")
_WORD = re.compile(r"(?<![\w.])[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_FROM = re.compile(r"\bfrom[ \t]+([a-z][\w.]*)[ \t]+import[ \t]+(\([^)]*|[\w, \t]+)")
_AS = re.compile(r"\bimport[ \t]+([a-z][\w.]*)[ \t]+as[ \t]+(\w+)")
_WORDS_OF_TEXT = re.compile(r"[^\W\d]\w*")
_RUN_TEXT = frozenset(
    (
        *(f"builtins.{name}" for name in ("compile", "eval", "exec")),
        *(f"timeit.{name}" for name in ("repeat", "timeit", "Timer")),
        *("ast.parse", "doctest.run_docstring_examples"),
    )
)
_TYPE_COMMENT = re.compile(r"#\s*type:\s*(?!ignore\b)(.*)")


def mentions(module: ModuleUses, context: ModernizeContext) -> Iterator[LeftAlone]:
    """Text that spells an old name in full, or as it is written after `from jax import experimental`."""
    source = module.facts.source
    for node in module.nodes_of(ast.Constant):
        text = node.value.decode("ascii", "replace") if isinstance(node.value, bytes) else node.value
        if not isinstance(text, str) or node in module.quoted:
            continue
        names = context.analysis(ToldNames).names if _run_by(module, node) is not None else context.owners
        kind = "a docstring" if isinstance(module.parents.get(node), ast.Expr) else "a string"
        first = node.lineno
        lines = range(first, (node.end_lineno or first) + 1)
        for found in dict.fromkeys(_spelled(text, names, _aliases(module, node, text))):
            last = found.rpartition(".")[2]
            shown = next(((n, word) for word in (found, last) for n in lines if word in source.line(n)), (first, found))
            column = source.line(shown[0]).find(shown[1]) + 1
            reason = f"it stands in {kind}; edit it by hand if code runs it"
            yield LeftAlone(module.facts.path, shown[0], max(column, 1), found, reason)
    yield from _in_type_comments(module, context.owners)


def _in_type_comments(module: ModuleUses, names: Collection[str]) -> Iterator[LeftAlone]:
    """Old names in comments that checkers read as types."""
    text = module.facts.source.text
    if _TYPE_COMMENT.search(text) is None:
        return
    facts = module.facts
    for line, start, comment in _comments(text):
        match = _TYPE_COMMENT.match(comment)
        for word in _WORD.finditer(match[1]) if match is not None else ():
            found = facts.names.resolve_dotted(word.group(), _scope_at(module, line))
            if found in names and match is not None:
                column = start + match.start(1) + word.start() + 1
                reason = f"it is `{found}` in a type comment; edit it by hand if a checker reads it"
                yield LeftAlone(facts.path, line, column, word.group(), reason)


def _comments(text: str) -> Iterator[tuple[int, int, str]]:
    """The line, the offset in it, and the text of each comment; with the magics of a notebook, where one may begin."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        for number, line in enumerate(text.splitlines(), 1):
            yield from ((number, match.start(), match.group()) for match in _TYPE_COMMENT.finditer(line))
        return
    yield from ((*token.start, token.string) for token in tokens if token.type == tokenize.COMMENT)


def _scope_at(module: ModuleUses, line: int) -> Scope:
    """The scope of the innermost function or class around a line."""
    names = module.facts.names
    nodes = (*module.nodes_of(ast.FunctionDef, ast.AsyncFunctionDef), *module.nodes_of(ast.ClassDef))
    around = [node for node in nodes if node.lineno <= line <= (node.end_lineno or node.lineno)]
    return names.inner[max(around, key=lambda node: node.lineno)] if around else names.scope


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
    if _name_of(module, call.func) not in _RUN_TEXT:
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


def _run_by(module: ModuleUses, node: ast.Constant) -> ast.Call | None:
    """The call that runs a string as code."""
    call = module.parents.get(node)
    call = module.parents.get(call) if isinstance(call, ast.keyword) else call
    return call if isinstance(call, ast.Call) and _name_of(module, call.func) in _RUN_TEXT else None


def _aliases(module: ModuleUses, node: ast.Constant, text: str) -> Mapping[str, str]:
    """What names stand for in code in a string: its imports, and in examples and text that is run those of its module.

    `timeit` is given imports apart.
    """
    call = _run_by(module, node)
    texts = [text]
    if call is not None:
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        texts += [str(each.value) for each in values if isinstance(each, ast.Constant)]
    found = {match[2]: match[1] for each in texts if "import" in each for match in _AS.finditer(each)}
    if call is None and ">>>" not in text:
        return found
    own = {item.local: item.name for item in module.imported}
    own |= {item.local: item.local for item in module.imported if item.alias.asname is None and "." in item.name}
    return own | found


def _spelled(text: str, names: Collection[str], aliases: Mapping[str, str]) -> Iterator[str]:
    for match in _FROM.finditer(text):
        for word in re.findall(r"\w+", match[2]):
            if f"{match[1]}.{word}" in names:
                yield f"{match[1]}.{word}"
    for match in _DOTTED.finditer(text):
        head, _, rest = match.group().replace(":", ".").partition(".")
        parts = (*aliases.get(head, head).split("."), *rest.split("."))
        for length in range(len(parts), 1, -1):
            found = ".".join(parts[:length])
            if found in names or (length > 1 and f"jax.experimental.{found}" in names):
                yield found
                break
