"""Code in strings: which strings a program runs, and what the names in code stand for."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from textwrap import dedent

from mmmodernize.calls.call_forms import keywords_of
from mmmodernize.names.name_index import PACKAGES
from mmmodernize.sites.site import ModernizeContext
from mmrewrite.project.facts import Facts, SourceFile, read_facts
from mmrewrite.project.uses import ImportedName, ModuleUses
from mmrewrite.source.names import dotted_name
from mmrewrite.source.walk import walk

_BUILTINS = frozenset(("compile", "eval", "exec"))
# Functions that run a text, or read it as code.
_RUN = frozenset(
    (
        *(f"builtins.{name}" for name in _BUILTINS),
        *(f"timeit.{name}" for name in ("repeat", "timeit", "Timer")),
        *("ast.parse", "doctest.run_docstring_examples"),
    )
)
# Methods that do so, of interpreters and of notebooks.
_RUN_METHODS = frozenset(("run_cell", "runsource"))
_PACKAGES = [package.decode() for package in PACKAGES]
_WORDS = re.compile(r"\w+")
# An example of an interpreter, with the lines that go on with it, and what comes before the code of each line.
_PROMPTED = re.compile(r"^[ \t]*(?:>>>|In \[\d+\]:).*(?:\n[ \t]*\.\.\.(?::.*| .*|(?=\n|\Z)))*", re.MULTILINE)
_PROMPT = re.compile(r"^[ \t]*(?:>>>|In \[\d+\]:|\.\.\.:?) ?", re.MULTILINE)
_FENCED = re.compile(r"^([ \t]*)```[^\n]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)


class RunTexts:
    """The calls of each module that run text, and the strings that they run."""

    def __init__(self, _: ModernizeContext) -> None:
        self._calls: dict[ModuleUses, Sequence[ast.Call]] = {}
        self._imports: dict[ModuleUses, Mapping[str, str]] = {}

    def calls(self, module: ModuleUses) -> Sequence[ast.Call]:
        """The calls that run a text, or read it as code."""
        if module not in self._calls:
            found = _runners(module)
            self._calls[module] = [
                call
                for call in module.nodes_of(ast.Call)
                if call.func in found or (isinstance(call.func, ast.Attribute) and call.func.attr in _RUN_METHODS)
            ]
        return self._calls[module]

    def strings(self, module: ModuleUses) -> Mapping[ast.AST, ast.Call]:
        """The strings that a module runs, each with the call that does."""
        return {text: call for call in self.calls(module) for text in texts_of(module, call)}

    def imports(self, module: ModuleUses) -> Mapping[str, str]:
        """What a module imports, as statements, by their names in it: for code that is run with these."""
        if module not in self._imports:
            self._imports[module] = {item.local: _statement(item) for item in module.imported}
        return self._imports[module]


def _statement(item: ImportedName) -> str:
    if isinstance(item.statement, ast.Import) and item.alias.asname is None:
        return f"import {item.name}"
    home, _, own = item.name.rpartition(".")
    return f"from {home} import {own} as {item.local}" if home else f"import {item.name} as {item.local}"


def _runners(module: ModuleUses) -> Set[ast.AST]:
    """The expressions that stand for a function that runs text."""
    if _BUILTINS.isdisjoint(module.heads):
        return {use.node for use in module.uses(_RUN)}
    # A module may call a builtin by a name of its own.
    functions = [call.func for call in module.nodes_of(ast.Call)]
    return {node for node in functions if module.full_name(node) in _RUN}


def texts_of(module: ModuleUses, call: ast.Call) -> Iterator[ast.Constant]:
    """The strings in a call that runs text, and those in what its names are bound to."""
    queue: list[ast.expr] = [*call.args, *(keyword.value for keyword in call.keywords)]
    seen: set[ast.AST] = set()
    while queue:
        for node in walk(queue.pop()):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                yield node
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                owner = module.scope_of(node).owner(node.id)
                for binding in owner.bindings[node.id] if owner is not None else ():
                    if isinstance(binding.value, ast.expr) and binding.value not in seen:
                        seen.add(binding.value)
                        queue.append(binding.value)


def text_in(node: ast.Constant) -> str:
    """The text of a string, or of bytes."""
    return node.value.decode("ascii", "replace") if isinstance(node.value, bytes) else str(node.value)


def has_examples(text: str) -> bool:
    """Whether a text has examples of an interpreter, which are run with the names of their module."""
    return ">>>" in text or "In [" in text


def code_in(
    text: str, is_asked: Callable[[Set[str]], bool], imports: Mapping[str, str], before: Sequence[str] = ()
) -> ModuleUses | None:
    """A text as a module, None if it is no code or has not the words that are asked for.

    Args:
        text: The text.
        is_asked: Whether a text with these words is looked for.
        imports: Statements that run first, by the names that they bind.
        before: Code that runs then.
    """
    for code in _codes(text):
        words = set(_WORDS.findall("\n".join((*before, code))))
        if not is_asked(words):
            break
        needed = [statement for local, statement in imports.items() if local in words]
        whole = "\n".join((*needed, *before, code))
        if not any(package in whole for package in _PACKAGES):
            break
        facts = _read(whole)
        if facts is not None:
            return ModuleUses(facts)
    return None


def names_in(code: ModuleUses, names: Collection[str]) -> list[str]:
    """The names among some full names that code uses, also by `import *`."""
    return [*(use.name for use in code.uses(names)), *_of_stars(code, names)]


def keywords_in(code: ModuleUses, functions: Collection[str]) -> list[tuple[str, str]]:
    """The keywords that calls in code give to functions of these full names, each with the function."""
    given = ((each.arg, use.name) for use in code.uses(functions) for each in keywords_of(code, use.node))
    return [(keyword, function) for keyword, function in given if keyword is not None]


def _codes(text: str) -> Iterator[str]:
    """The parts of a text that may be code: all of it, or its examples and fenced blocks."""
    yield dedent(text)
    yield text.strip()
    pieces = [(match.start(), _PROMPT.sub("", match[0])) for match in _PROMPTED.finditer(text)]
    pieces += [(match.start(), dedent(match[2])) for match in _FENCED.finditer(text)]
    shown = [piece for _, piece in sorted(pieces)]
    yield "\n".join(shown)
    # Others are of a shell, or have commands of IPython.
    yield "\n".join(piece for piece in shown if _read(piece) is not None)


def _read(text: str) -> Facts | None:
    facts = read_facts(SourceFile("text.py", text.encode(errors="replace"), "text"), ())
    return facts if isinstance(facts, Facts) else None


def _of_stars(module: ModuleUses, names: Collection[str]) -> Iterator[str]:
    for star in module.facts.names.stars:
        for head, chain in module.chains:
            if module.scope_of(head).owner(head.id) is None:
                full = (f"{star.module}.{dotted_name(node)}" for node in reversed(chain))
                yield from [name for name in full if name in names][:1]
