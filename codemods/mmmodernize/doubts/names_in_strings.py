"""Old names in strings, docstrings, type comments and lines for IPython. They are reported, not edited.

Only the user knows what runs.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from itertools import pairwise

from mmmodernize.modules.project_names import ToldNames
from mmmodernize.names.advice import SUCCESSORS
from mmmodernize.names.old_keywords import OLD_KEYWORDS, lost_keywords, may_give_lost_keywords
from mmmodernize.sites.decision import left_at
from mmmodernize.sites.site import ModernizeContext
from mmmodernize.text.run_text import RunTexts, code_in, has_examples, keywords_in, names_in, text_in, texts_of
from mmrewrite.project.uses import ModuleUses
from mmrewrite.results import LeftAlone
from mmrewrite.source.brackets import tokens
from mmrewrite.source.names import Scope
from mmrewrite.source.spans import span
from mmrewrite.source.text import SourceText
from mmrewrite.source.walk import walk

_EQUALS_SIGN = re.compile(r"[\s)]*=")
_DOTTED = re.compile(r"(?<![\w.])[^\W\d]\w*(?:[.:][^\W\d]\w*)+")
_WORD = re.compile(r"(?<![\w.])[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_FROM = re.compile(r"\bfrom[ \t]+([a-z][\w.]*)[ \t]+import[ \t]+(\([^)]*|[\w, \t]+)")
_LOCAL = re.compile(r"\bas\s+\w+")
_IMPORT = re.compile(r"\bimport[ \t]+([a-z][\w., \t]*)")
_WORDS = re.compile(r"\w+")
_TYPE_COMMENT = re.compile(r"#\s*type:\s*(?!ignore\b)(.*)")

# What may be a type that is written as a string, and where it is one outside of annotations.
_TYPE = re.compile(r"[\w., |\[\]]+")
_OF_TYPES = ("typing.", "typing_extensions.", "dataclasses.make_dataclass")
_TAKE_TYPES = frozenset(("ForwardRef", "NamedTuple", "NewType", "TypeVar", "TypedDict", "cast", "make_dataclass"))
_GENERICS = (
    *("typing.", "typing_extensions.", "collections.abc.", "jaxtyping."),
    *(f"builtins.{name}" for name in ("dict", "frozenset", "list", "set", "tuple", "type")),
)


def mentions(module: ModuleUses, context: ModernizeContext) -> Iterator[LeftAlone]:
    """Text that spells an old name in full, or as it is written after `from jax import experimental`."""
    source = module.facts.source
    texts, told = context.analysis(RunTexts), context.analysis(ToldNames)
    run = texts.strings(module)
    for node in module.nodes_of(ast.Constant):
        if not isinstance(node.value, str | bytes) or node in module.quoted:
            continue
        text = text_in(node).removesuffix(_label_in(module, node))
        run_by = run.get(node)
        names = told.names if run_by is not None else context.owners
        kind = "a docstring" if isinstance(module.parents.get(node), ast.Expr) else "a string"
        spelled = [*_spelled(text, names, _aliases(module, run_by, text))]
        if _TYPE.fullmatch(text) and _stands_for_type(module, node):
            spelled += _in_type(module, node, text, context.owners)
        keywords: Sequence[tuple[str, str]] = ()
        if run_by is not None or "import" in text or has_examples(text):
            used, keywords = _in_code(module, context, run_by, text)
            spelled += used
        in_text = f"it stands in {kind}; edit it by hand if code runs it"
        told_here = dict.fromkeys(spelled, in_text)
        for keyword, function in keywords:
            became = lost_keywords()[function][keyword]
            told_here[f"{keyword}="] = f"`{keyword}=` of `{function}` {became}; {in_text}"
        for found, reason in told_here.items():
            first, last = node.lineno, found.rpartition(".")[2]
            lines = range(first, (node.end_lineno or first) + 1)
            begin = source.offset(first, node.col_offset) - source.line_starts[first - 1]
            places = ((n, source.line(n).find(word, begin * (n == first))) for word in (found, last) for n in lines)
            line, column = next((place for place in places if place[1] >= 0), (first, 0))
            yield LeftAlone(module.facts.path, line, column + 1, found, reason)
        if not spelled:
            yield from _by_way_of_project(module, context, node, text)
    yield from _in_type_comments(module, context.owners)
    for hidden in context.hidden.get(module.facts.path, ()):
        yield from _in_hidden(module, hidden, told)


def _by_way_of_project(
    module: ModuleUses, context: ModernizeContext, node: ast.Constant, text: str
) -> Iterator[LeftAlone]:
    """Text that is a name of the project which stands for an old one, as in `mock.patch("compat.core.KeyArray")`."""
    qualified = text.replace(":", ".")
    if "." not in qualified or _DOTTED.fullmatch(text) is None or not context.project.holds(qualified, module.facts):
        return
    found = module.facts.names.follow(qualified)
    home, _, own = qualified.rpartition(".")
    inner = context.project.module(home, module.facts)
    # An imported name keeps its alias where it moves.
    is_kept = inner is not None and own in inner.names.scope.bindings and found in context.moved
    if found in context.owners and not is_kept:
        reason = f"it is `{found}` by way of the project's modules, which may lose the name or use it no more"
        yield left_at(module, node, reason, found, text)


def names_in_labels(module: ModuleUses, context: ModernizeContext) -> Iterator[LeftAlone]:
    """What may be replaced in `f"{jax.tree_map(f, x)=}"`, which shows the text of the expression."""
    source = module.facts.source
    labels = [value for node in module.nodes_of(ast.JoinedStr) for value in _labelled(module, node)]
    for node in (each for value in labels for each in walk(value)):
        found = _replaced(module, context, node)
        if found is not None and isinstance(node, ast.expr | ast.keyword):
            reason = f"the string shows this text, so that what it shows changes once `{found}` is rewritten"
            yield left_at(module, node, reason, found, source.text[slice(*span(source, node))])


def _replaced(module: ModuleUses, context: ModernizeContext, node: ast.AST) -> str | None:
    """The old name, keyword or member that a node is and may be no more once its module is rewritten."""
    if isinstance(node, ast.Name | ast.Attribute):
        found = module.full_name(node)
        # Where the import of a name moves, its uses stay.
        is_old = found in context.owners and not (isinstance(node, ast.Name) and found in context.moved)
        if is_old or found is not None or isinstance(node, ast.Name):
            return found if is_old else None
        is_called = module.call_at(node) is not None
        return node.attr if node.attr in _MEMBERS or (node.attr == "device" and is_called) else None
    if isinstance(node, ast.keyword) and node.arg is not None:
        call = module.parents[node]
        function = module.full_name(call.func) if isinstance(call, ast.Call) else None
        return f"{node.arg}=" if function is not None and node.arg in OLD_KEYWORDS.get(function, ()) else None
    return None


# Members of which something else is written, beside `x.device()`.
_MEMBERS = frozenset(name.rpartition(".")[2] for name in SUCCESSORS)


def _labelled(module: ModuleUses, string: ast.JoinedStr) -> Iterator[ast.expr]:
    """The expressions of `{x=}` in a string."""
    for before, value in pairwise(string.values):
        if isinstance(before, ast.Constant) and isinstance(value, ast.FormattedValue) and _label_in(module, before):
            yield value.value


def _label_in(module: ModuleUses, node: ast.Constant) -> str:
    """The text `x=` of `{x=}` at the end of what stands before it in a string, else nothing."""
    string = module.parents.get(node)
    if not isinstance(string, ast.JoinedStr):
        return ""
    value = next((after for before, after in pairwise(string.values) if before is node), None)
    if not isinstance(value, ast.FormattedValue):
        return ""
    source = module.facts.source
    first, last = span(source, value.value)
    # `{x}` may stand behind the same text.
    if _EQUALS_SIGN.match(source.text, last) is None:
        return ""
    text = text_in(node)
    start = text.rfind(source.text[first:last])
    return text[start:] if start >= 0 else ""


def _in_hidden(module: ModuleUses, lines: Mapping[int, str], told: ToldNames) -> Iterator[LeftAlone]:
    """Old names in lines of a cell that are no Python, as the imports in them and in the notebook resolve them."""
    text = "\n".join(lines.values())
    if told.last_parts.isdisjoint(_WORDS.findall(text)):
        return
    aliases, names = _imported_in(text), module.facts.names
    by_import = {f"{match[1]}.{name}" for match in _FROM.finditer(text) for name, _ in _listed(match[2])}
    for number, line in lines.items():
        words = [(match.start(), match.group().replace(":", ".")) for match in _WORD.finditer(line)]
        for start, word in words:
            head, dot, rest = word.partition(".")
            full = aliases[head] + dot + rest if head in aliases else names.resolve_dotted(word, names.scope) or word
            imported = {name for name in by_import & told.names if name.endswith(f".{word}")}
            while full not in told.names and "." in full:
                full = full.rpartition(".")[0]
            for found in {full} & told.names or imported:
                reason = f"it is `{found}` in a line for IPython; edit it by hand if it runs"
                yield LeftAlone(module.facts.path, number, start + 1, word, reason)


def _in_type_comments(module: ModuleUses, names: Collection[str]) -> Iterator[LeftAlone]:
    """Old names in comments that checkers read as types."""
    text, facts = module.facts.source.text, module.facts
    written = {word for match in _TYPE_COMMENT.finditer(text) for word in _WORD.findall(match[1])}
    # Most say little, and to find the comments of a text takes long.
    if not any(_resolves_to_any(module, word, names) for word in written):
        return
    for line, start, comment in _comments(text):
        match = _TYPE_COMMENT.match(comment)
        for word in _WORD.finditer(match[1]) if match is not None else ():
            found = facts.names.resolve_dotted(word.group(), _scope_at(module, line))
            if found in names and match is not None:
                column = start + match.start(1) + word.start() + 1
                reason = f"it is `{found}` in a type comment; edit it by hand if a checker reads it"
                yield LeftAlone(facts.path, line, column, word.group(), reason)


def _resolves_to_any(module: ModuleUses, dotted: str, wanted: Collection[str]) -> bool:
    """Whether a dotted name stands for one of `wanted` in any scope."""
    names, head = module.facts.names, dotted.partition(".")[0]
    scopes = (names.scope, *(scope for scope in names.inner.values() if head in scope.bindings))
    return any(names.resolve_dotted(dotted, scope) in wanted for scope in scopes)


def _comments(text: str) -> Iterator[tuple[int, int, str]]:
    """The line, the offset in it, and the text of each comment; with the magics of a notebook, where one may begin."""
    try:
        found = list(tokens(text))
    except (tokenize.TokenError, SyntaxError):
        for number, line in enumerate(SourceText(text, "utf-8", False).lines, 1):
            yield from ((number, match.start(), match.group()) for match in _TYPE_COMMENT.finditer(line))
        return
    yield from ((*token.start, token.string) for token in found if token.type == tokenize.COMMENT)


def _scope_at(module: ModuleUses, line: int) -> Scope:
    """The scope of the innermost function or class around a line."""
    names = module.facts.names
    nodes = (*module.nodes_of(ast.FunctionDef, ast.AsyncFunctionDef), *module.nodes_of(ast.ClassDef))
    around = [node for node in nodes if node.lineno <= line <= (node.end_lineno or node.lineno)]
    return names.inner[max(around, key=lambda node: node.lineno)] if around else names.scope


def _in_code(
    module: ModuleUses, context: ModernizeContext, call: ast.Call | None, text: str
) -> tuple[Sequence[str], Sequence[tuple[str, str]]]:
    """The names that code in a string uses, and the keywords that it gives to functions which lost them, with these.

    They are found by its own imports, and by those of the module where it is run with them.
    """
    told = context.analysis(ToldNames)

    def is_asked(words: Set[str]) -> bool:
        return not told.last_parts.isdisjoint(words) or may_give_lost_keywords(words)

    if not is_asked({*_WORDS.findall(text)}):
        return (), ()
    imports: Mapping[str, str] = {}
    setups: list[str] = []
    if call is not None or has_examples(text):
        imports = context.analysis(RunTexts).imports(module)
        others = [] if call is None else [text_in(each) for each in texts_of(module, call)]
        setups = [each for each in others if each != text and "import" in each]
    names, lost = told.names if call is not None else context.owners, lost_keywords()
    used: Sequence[str] = ()
    given: Sequence[tuple[str, str]] = ()
    # What stands beside it may be no code, or only a part of it.
    for before in (setups, ()) if setups else ((),):
        code = code_in(text, is_asked, imports, before)
        if code is not None:
            used = used or names_in(code, names)
            given = given or [each for each in keywords_in(code, lost) if each[0] in lost[each[1]]]
    return used, given


def _stands_for_type(module: ModuleUses, node: ast.Constant) -> bool:
    """Whether a string outside of annotations is a type: in `cast("Key", x)`, or in `Union["Key", None]`."""
    inner: ast.AST = node
    for holder in module.above(node):
        if isinstance(holder, ast.Subscript):
            name = module.facts.names.resolve(holder.value, module.scope_of(holder)) or ""
            return name.startswith(_GENERICS) and not name.endswith(".Literal")
        if isinstance(holder, ast.Call):
            is_asked = inner is not holder.func and _last_name(holder.func) in _TAKE_TYPES
            name = (module.full_name(holder.func) or "") if is_asked else ""
            return name.startswith(_OF_TYPES)
        if not isinstance(holder, ast.BinOp | ast.List | ast.Tuple | ast.keyword):
            return False
        inner = holder
    return False


def _in_type(module: ModuleUses, node: ast.Constant, text: str, names: Collection[str]) -> Iterator[str]:
    for word in _WORD.findall(text):
        found = module.facts.names.resolve_dotted(word, module.scope_of(node))
        if found is not None and found in names:
            yield found


def _aliases(module: ModuleUses, call: ast.Call | None, text: str) -> Mapping[str, str]:
    """What names in a string stand for, by the imports in its text and in the module.

    The latter count in examples, and in text that `call` runs. `timeit` is given imports apart.
    """
    texts = [text]
    if call is not None:
        texts += [text_in(each) for each in texts_of(module, call)]
    found: dict[str, str] = {}
    for each in texts:
        found |= _imported_in(each)
    if call is None and not has_examples(text):
        return found
    own = {item.local: item.name for item in module.imported}
    own |= {item.local: item.local for item in module.imported if item.alias.asname is None and "." in item.name}
    return own | found


def _imported_in(text: str) -> Mapping[str, str]:
    """What names stand for by the imports in a text."""
    found: dict[str, str] = {}
    for match in _IMPORT.finditer(text) if "import" in text else ():
        found |= {local: name for name, local in _listed(match[1]) if local != name}
    # After those, which find the end of `from jax import tree_map as t` as well.
    for match in _FROM.finditer(text) if "import" in text else ():
        found |= {local: f"{match[1]}.{name}" for name, local in _listed(match[2])}
    return found


def _listed(text: str) -> Iterator[tuple[str, str]]:
    """The names in the list of an import, and what each is called."""
    for words in (part.split() for part in text.strip("()").split(",")):
        if len(words) == 1 or words[1:2] == ["as"]:
            yield words[0], words[-1]


def _spelled(text: str, names: Collection[str], aliases: Mapping[str, str]) -> Iterator[str]:
    for match in _FROM.finditer(text) if "import" in text else ():
        # In `from flax import linen as nn`, `nn` is no name of Flax.
        for word in _WORDS.findall(_LOCAL.sub("", match[2])):
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


def _last_name(node: ast.AST) -> str | None:
    """The last part of a name or an attribute, also of one that is looked up in a container or by its text.

    Of a call it is that of what is called, with `()`.
    """
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    match node:
        case ast.Subscript(value=value):
            return _last_name(value)
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
            return name
        case ast.Call(func=function):
            called = _last_name(function)
            return f"{called}()" if called is not None else None
        case _:
            return None
