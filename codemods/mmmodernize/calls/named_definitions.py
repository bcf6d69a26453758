"""Definitions that no code names, told from the text of modules alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from mmrewrite.project.facts import Facts
from mmrewrite.source.text import as_parsed


class NamedDefinitions:
    """Looks for the names of definitions in the text of `modules`.

    What leads to a function or a class is a name, an attribute or an import with its name. So nothing does if that
    stands nowhere but where it is defined, whatever else holds the same text.
    """

    def __init__(self, modules: Sequence[Facts]) -> None:
        self._texts = [(facts.path, as_parsed(facts.source.text)) for facts in modules]

    def may_be(self, facts: Facts, definition: ast.AST) -> bool:
        """Whether code may name a function or a class of the module `facts`."""
        if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return True
        if definition.decorator_list or (isinstance(definition, ast.ClassDef) and _is_made_by_others(definition)):
            # A decorator, a base or a metaclass may hand it on without its name.
            return True
        name = definition.name
        if name.startswith("__") and name.endswith("__"):
            # Python calls it by an operator or a statement.
            return True
        if any(isinstance(node, ast.Global | ast.Nonlocal) for node in ast.walk(definition)):
            # Then names of the module lead here as well.
            return True
        # Out of its class, `__enter` is `_Class__enter`.
        start = "" if name.startswith("__") else r"\b"
        word = re.compile(rf"{start}{re.escape(name)}\b")
        return any(name in text and len(word.findall(text)) > (path == facts.path) for path, text in self._texts)


def _is_made_by_others(definition: ast.ClassDef) -> bool:
    """Whether a class has a base, whose `__init_subclass__` is given it, or a keyword, as for a metaclass."""
    return bool(definition.bases or definition.keywords)
