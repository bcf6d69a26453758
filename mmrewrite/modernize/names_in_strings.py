"""Old names in strings, docstrings and type comments. They are reported, not edited: only the user knows what runs."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterator, Mapping

from mmrewrite.modernize.analysis.passed_modules import PassedModules, module_by_name
from mmrewrite.modernize.site import ModernizeContext
from mmrewrite.modernize.uses import ModuleUses
from mmrewrite.modernize.version_guards import guard_of
from mmrewrite.results import LeftAlone
from mmrewrite.source.spans import span

_DOTTED = re.compile(r"(?<![\w.])[^\W\d]\w*(?:\.[^\W\d]\w*)+")
_WORD = re.compile(r"(?<![\w.])[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_FROM = re.compile(r"\bfrom[ \t]+([a-z][\w.]*)[ \t]+import[ \t]+(\(?[\w, \t]+)")
_AS = re.compile(r"\bimport[ \t]+([a-z][\w.]*)[ \t]+as[ \t]+(\w+)")
_TYPE_COMMENT = re.compile(r"#\s*type:\s*(?!ignore\b)(.*)")


def mentions(module: ModuleUses, names: Collection[str]) -> Iterator[LeftAlone]:
    """Text that spells an old name in full, or as it is written after `from jax import experimental`."""
    source = module.facts.source
    for node in module.strings:
        text = str(node.value)
        found = next(_spelled(text, names, _aliases(module, text)), None)
        if found is None or node in module.quoted:
            continue
        kind = "a docstring" if isinstance(module.parents.get(node), ast.Expr) else "a string"
        last = found.rpartition(".")[2]
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        shown = next(
            ((n, word) for word in (found, last) for n in lines if word in source.line(n)), (node.lineno, found)
        )
        column = source.line(shown[0]).find(shown[1]) + 1
        reason = f"it stands in {kind}; edit it by hand if code runs it"
        yield LeftAlone(module.facts.path, shown[0], max(column, 1), found, reason)
    yield from _in_type_comments(module, names)


def _in_type_comments(module: ModuleUses, names: Collection[str]) -> Iterator[LeftAlone]:
    """Old names in comments that checkers read as types."""
    text = module.facts.source.text
    if _TYPE_COMMENT.search(text) is None:
        return
    facts = module.facts
    try:
        comments = [
            token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT
        ]
    except (tokenize.TokenError, SyntaxError):
        # A notebook's magics, of which the tree has nothing.
        return
    for token in comments:
        match = _TYPE_COMMENT.match(token.string)
        for word in _WORD.finditer(match[1]) if match is not None else ():
            found = facts.names.resolve_dotted(word.group(), facts.names.scope)
            if found in names and match is not None:
                column = token.start[1] + match.start(1) + word.start() + 1
                reason = f"it is `{found}` in a type comment; edit it by hand if a checker reads it"
                yield LeftAlone(facts.path, token.start[0], column, word.group(), reason)


def looked_up(module: ModuleUses, context: ModernizeContext) -> Iterator[LeftAlone]:
    """Old names that stand as text for themselves, as in `getattr(jax, "tree_map")` and `vars(jax)["tree_map"]`."""
    names, passed = context.owners, context.analysis(PassedModules)
    source = module.facts.source
    told: dict[ast.AST, str] = {}
    for node in module.strings:
        for home in _homes_asked(module, passed, node):
            full = f"{home}.{node.value!s}"
            if full in names:
                told[node] = f"it is `{full}`, looked up by its name; write what takes its place"
    for call in module.nodes_of(ast.Call):
        name = module_by_name(module, call) if _name_of(module, call.func) == "importlib.import_module" else None
        if name in names and name != ast.literal_eval(call.args[0]):
            told[call] = f"it is `{name}`, looked up by its name; write what takes its place"
        told |= dict(_of_computed_names(module, call, passed, names))
    for place, reason in told.items():
        if guard_of(module, place) is None and isinstance(place, ast.expr):
            position = source.position(span(source, place)[0])
            yield LeftAlone(module.facts.path, *position, ast.unparse(place), reason)


def _homes_asked(module: ModuleUses, passed: PassedModules, node: ast.Constant) -> Iterator[str]:
    """The modules in which a string is looked up, as far as they are seen; with a default, code copes without."""
    holder = module.parents.get(node)
    if isinstance(holder, ast.Subscript) and holder.slice is node:
        table = holder.value
        if isinstance(table, ast.Attribute) and table.attr == "__dict__":
            yield from _modules(module, passed, table.value)
        elif isinstance(table, ast.Call) and table.args and _name_of(module, table.func) == "builtins.vars":
            yield from _modules(module, passed, table.args[0])
    elif isinstance(holder, ast.Call) and node in holder.args:
        function = _name_of(module, holder.func)
        is_asked = len(holder.args) > 1 and holder.args[1] is node
        if function == "operator.attrgetter":
            yield from passed.places
        elif function == "builtins.hasattr" or (function == "builtins.getattr" and len(holder.args) > 2):
            return
        elif is_asked:
            yield from _modules(module, passed, holder.args[0], is_lookup=function == "builtins.getattr")


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
        full = f"{home}.{node.value!s}"
        if full in names and node is not asked:
            yield node, f"it may be `{full}`, as line {call.lineno} looks names up in `{home}`; write that of today"


def _name_of(module: ModuleUses, node: ast.expr) -> str | None:
    return module.facts.names.resolve(node, module.scope_of(node))


def _aliases(module: ModuleUses, text: str) -> Mapping[str, str]:
    """What names stand for in the examples of a docstring: those that it imports, and those of its module."""
    if ">>>" not in text:
        return {}
    own = {item.local: item.name for item in module.imported}
    return own | {match[2]: match[1] for match in _AS.finditer(text)}


def _spelled(text: str, names: Collection[str], aliases: Mapping[str, str]) -> Iterator[str]:
    for match in _FROM.finditer(text):
        for word in re.findall(r"\w+", match[2]):
            if f"{match[1]}.{word}" in names:
                yield f"{match[1]}.{word}"
    for match in _DOTTED.finditer(text):
        head, _, rest = match.group().partition(".")
        parts = (*aliases.get(head, head).split("."), *rest.split("."))
        for length in range(len(parts), 1, -1):
            found = ".".join(parts[:length])
            if found in names or (length > 1 and f"jax.experimental.{found}" in names):
                yield found
                break
