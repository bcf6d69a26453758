"""Code in strings: which strings a program runs, and what the names in code stand for."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from textwrap import dedent

from mmrewrite.modernize.uses import ModuleUses, dotted_text
from mmrewrite.project.facts import Facts, SourceFile, read_facts
from mmrewrite.source.walk import walk

# Functions that run a text, or read it as code.
_RUN = frozenset(
    (
        *(f"builtins.{name}" for name in ("compile", "eval", "exec")),
        *(f"timeit.{name}" for name in ("repeat", "timeit", "Timer")),
        *("ast.parse", "doctest.run_docstring_examples"),
    )
)
# Methods that do so, of interpreters and of notebooks.
_RUN_METHODS = frozenset(("run_cell", "runsource"))
_EXAMPLE = re.compile(r"^[ \t]*(?:>>>|\.\.\.|In \[\d+\]:|\.\.\.:) ?(.*)", re.MULTILINE)
_FENCED = re.compile(r"^([ \t]*)```[^\n]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)


def runs_text(module: ModuleUses, call: ast.Call) -> bool:
    """Whether a call runs a text, or reads it as code."""
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr in _RUN_METHODS:
        return True
    return module.facts.names.resolve(function, module.scope_of(function)) in _RUN


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


def run_texts(module: ModuleUses) -> Mapping[ast.AST, ast.Call]:
    """The strings that a module runs, each with the call that does."""
    found: dict[ast.AST, ast.Call] = {}
    for call in module.nodes_of(ast.Call):
        if runs_text(module, call):
            found |= dict.fromkeys(texts_of(module, call), call)
    return found


def has_examples(text: str) -> bool:
    """Whether a text has examples of an interpreter, which are run with the names of their module."""
    return ">>>" in text or "In [" in text


def names_in_code(text: str, names: Collection[str], before: Iterable[str]) -> list[str]:
    """The names among `names` that code in a text uses, none if it is no code; `before` runs first."""
    for code in _codes(text):
        facts = read_facts(SourceFile("text.py", "\n".join((*before, code)).encode(), "text"), ())
        if isinstance(facts, Facts):
            module = ModuleUses(facts)
            found = [use.name for use in module.uses(names)]
            return found + list(_of_stars(module, names))
    return []


def own_imports(module: ModuleUses) -> list[str]:
    """The imports of a module as text, for code that is run with its names."""
    statements = dict.fromkeys(item.statement for item in module.imported)
    return [
        ast.unparse(each) for each in statements if isinstance(each, ast.Import) or (not each.level and each.module)
    ]


def _codes(text: str) -> Iterator[str]:
    """What of a text may be code: its examples, what is fenced, or all of it."""
    if has_examples(text):
        yield "\n".join(match[1] for match in _EXAMPLE.finditer(text))
    elif "```" in text:
        yield "\n".join(dedent(match[2]) for match in _FENCED.finditer(text))
    else:
        yield dedent(text)
        yield text.strip()


def _of_stars(module: ModuleUses, names: Collection[str]) -> Iterator[str]:
    for star in module.facts.names.stars:
        for head, chain in module.chains:
            if module.scope_of(head).owner(head.id) is None:
                full = (f"{star.module}.{dotted_text(node)}" for node in reversed(chain))
                yield from [name for name in full if name in names][:1]
