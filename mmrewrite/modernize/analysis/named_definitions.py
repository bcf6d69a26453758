"""Definitions that no code names, told from the text of modules alone."""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Sequence

from mmrewrite.project.facts import Facts


class NamedDefinitions:
    """Looks for the names of definitions in the text of `modules`.

    What leads to a function or a class is a name, an attribute or an import with its name. So nothing does if that
    stands nowhere but where it is defined, whatever else holds the same text.
    """

    def __init__(self, modules: Sequence[Facts]) -> None:
        self._texts = [(facts.path, _as_parsed(facts.source.text)) for facts in modules]

    def may_be(self, facts: Facts, definition: ast.AST) -> bool:
        """Whether code may name a function or a class of the module `facts`."""
        if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return True
        if any(isinstance(node, ast.Global | ast.Nonlocal) for node in ast.walk(definition)):
            # Then names of the module lead here as well.
            return True
        word = re.compile(rf"\b{re.escape(definition.name)}\b")
        for path, text in self._texts:
            if definition.name in text and len(word.findall(text)) > (path == facts.path):
                return True
        return False


def _as_parsed(text: str) -> str:
    """A text with the letters that names have once they are parsed."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text)
