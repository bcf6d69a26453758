"""Give code outside of steps a copy, in one place, of what steps have put on several submeshes.

    scores = evaluate(model, images)  # mm: gather(model)
    ->  scores = evaluate(mm.gather(model), images)

The comment is about every place in its statement that reads the value. As a call it is around one of them:
`hints.gather(model)(x)`. A loop over batches should not copy the model in each iteration: bind the copy to a name above
it, `copy = model  # mm: gather(model)`.

To check: the copy fits on one device, and nothing changes it, as its changes would be lost.

Refused: a value that the statement does not read, or that a lambda or a comprehension in it binds again. Where a copy
is needed, the runtime says when it runs, with the line.
See https://docs.jax.dev/en/latest/faq.html#controlling-data-and-computation-placement-on-devices for committed arrays.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

import libcst as cst

from mmrewrite.codemod.base import MeshCodemod
from mmrewrite.directives.vocabulary import CALL, STATEMENT
from mmrewrite.source.functions import own_expressions
from mmrewrite.source.names import all_arguments, dotted_name

_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class GatherValue(MeshCodemod):
    """Puts `mm.gather(...)` around reads of a value."""

    directive = "gather"
    kinds = frozenset((STATEMENT, CALL))

    def rewrite(self) -> None:
        """Find what is gathered."""
        self._target: cst.Call | None = None
        self._reads: tuple[cst.CSTNode, ...] = ()
        if self.hint.call is not None:
            if self.hint.arguments:
                self.site.error("`gather` takes one value; write a call for each", self.hint.arguments[0])
            self._target = self.site.call(self.site.statement, self.hint.call)
        else:
            if not self.hint.arguments:
                self.site.error("`gather` does not say what; name the value that the statement reads: `gather(model)`")
            for argument in self.hint.arguments:
                self._check(argument.value, argument.text)
            wanted = {dotted_name(argument.value) for argument in self.hint.arguments}
            self._reads = tuple(_reads(self.site.fragment(self.site.statement).node, wanted))
        self.site.transform(self.site.statement, self)

    def _check(self, value: ast.expr, text: str) -> None:
        """Refuses a value that the statement does not read, or that means something else in a part of it."""
        dotted = dotted_name(value)
        if dotted is None:
            self.refuse(f"`{text}` is no name; give the value a name above, and write that")
        nodes = list(own_expressions(self.site.statement))
        reads = (
            node for node in nodes if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
        )
        if not any(dotted_name(node) == dotted for node in reads):
            self.refuse(f"this statement does not read `{text}`; hint the one that does, or name what it reads")
        root = dotted.partition(".")[0]
        if root in set(_bound_inside(nodes)):
            self.refuse(f"`{root}` means something else in a part of this statement; use another name there")

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        """`model` becomes `mm.gather(model)`."""
        return self._gathered(original_node, updated_node)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        """`state.params` becomes `mm.gather(state.params)`."""
        return self._gathered(original_node, updated_node)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """`hints.gather(model)` becomes `mm.gather(model)`."""
        if original_node is not self._target:
            return updated_node
        return self.generated(f"{self.site.runtime}.gather", updated_node.args[0].value)

    def _gathered(self, original: cst.BaseExpression, updated: cst.BaseExpression) -> cst.BaseExpression:
        if any(original is read for read in self._reads):
            return self.generated(f"{self.site.runtime}.gather", updated)
        return updated


def _dotted(node: cst.CSTNode) -> str | None:
    """`state.params`, whatever stands between its names."""
    if isinstance(node, cst.Attribute):
        value = _dotted(node.value)
        return f"{value}.{node.attr.value}" if value is not None else None
    return node.value if isinstance(node, cst.Name) else None


def _reads(node: cst.CSTNode, wanted: Collection[str | None]) -> Iterator[cst.CSTNode]:
    """Where a statement reads some names, and not where it binds or only spells them, as `model` in `f(model=x)`."""
    if isinstance(node, cst.Name | cst.Attribute) and _dotted(node) in wanted and _dotted(node) is not None:
        yield node
    elif isinstance(node, cst.AnnAssign | cst.AugAssign | cst.Arg | cst.Attribute):
        if node.value is not None:
            yield from _reads(node.value, wanted)
    elif not isinstance(node, cst.AssignTarget):
        for child in node.children:
            yield from _reads(child, wanted)


def _bound_inside(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Names that lambdas and comprehensions bind."""
    for node in nodes:
        if isinstance(node, ast.Lambda):
            yield from (each.arg for each in all_arguments(node.args))
        elif isinstance(node, _COMPREHENSIONS):
            targets = (generator.target for generator in node.generators)
            yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
        elif isinstance(node, ast.NamedExpr) and isinstance(node.target, ast.Name):
            yield node.target.id
