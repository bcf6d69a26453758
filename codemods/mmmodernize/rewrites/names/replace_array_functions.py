"""Write `x.at[...]` for the functions of `jax.ops` that updated arrays, `jnp.isin` for `jnp.in1d`, and `permutation`.

    jax.ops.index_add(x, idx, y)
    jnp.in1d(x, y)
    jax.random.shuffle(key, x)
    ->  x.at[idx].add(y)
    ->  jnp.isin(jnp.ravel(x), y)
    ->  jax.random.permutation(key, x, independent=True)

What the source does not show to be an array of JAX goes through `jnp.asarray`, as it did in the functions. Their other
arguments stay, by name.

To check: nothing; these are the same operations.

Refused: the functions as values, and arguments that `*` or `**` hide, or that are passed by name in another order.
See https://docs.jax.dev/en/latest/_autosummary/jax.numpy.ndarray.at.html
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import ClassVar, NoReturn

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.arguments import append_argument, value_start
from mmmodernize.names.name_index import old_names
from mmmodernize.types.value_classes import ValueClasses
from mmrewrite.source.brackets import arguments_of, call_brackets, needs_brackets, text_before
from mmrewrite.source.calls import stars_of
from mmrewrite.source.text import has_lines

_METHODS = {
    f"jax.ops.index_{name}": method
    for name, method in (("add", "add"), ("max", "max"), ("min", "min"), ("mul", "multiply"), ("update", "set"))
}
_PARAMETERS = ("x", "idx", "y", "indices_are_sorted", "unique_indices")
_IN1D = "jax.numpy.in1d"
_SHUFFLE = "jax.random.shuffle"
_OF_ISIN = {"ar1": "element", "ar2": "test_elements"}
_PRIMARY = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)


class ReplaceArrayFunctions(ModernizeCodemod):
    """Replaces calls."""

    names: ClassVar[tuple[str, ...]] = (*_METHODS, _IN1D, _SHUFFLE)

    def rewrite(self) -> None:
        """Replace one call."""
        if not self.use.is_direct:
            return
        call = self.site.call
        if call is None or "*" in stars_of(call):
            self._refuse()
        if self.use.name == _IN1D:
            self._write_isin(call)
        elif self.use.name == _SHUFFLE:
            self._write_permutation(call)
        else:
            self._write_at(call, _METHODS[self.use.name])

    def _refuse(self) -> NoReturn:
        row = old_names()[self.use.name]
        self.refuse(f"`{row.name}` {row.history}; {row.advice}")

    def _write_isin(self, call: ast.Call) -> None:
        site, arguments = self.site, arguments_of(call)
        names = [each.arg for each in call.keywords]
        first = next((each for each in arguments if not isinstance(each, ast.keyword) or each.arg == "ar1"), None)
        if first is None or None in names:
            self._refuse()
        site.wrap(first.value if isinstance(first, ast.keyword) else first, f"{site.spell('jax.numpy.ravel')}(", ")")
        for keyword in call.keywords:
            if keyword.arg in _OF_ISIN:
                site.rename_keyword(keyword, _OF_ISIN[keyword.arg])
        site.replace(self.use.node, site.spell("jax.numpy.isin"))

    def _write_permutation(self, call: ast.Call) -> None:
        if "**" in stars_of(call):
            self._refuse()
        append_argument(self.site, call, "independent=True")
        self.site.replace(self.use.node, self.site.spell("jax.random.permutation"))

    def _write_at(self, call: ast.Call, method: str) -> None:
        """Put the array before, and the index between, what is left of the call."""
        site = self.site
        arguments = arguments_of(call)
        names = [
            each.arg if isinstance(each, ast.keyword) else name
            for each, name in zip(arguments, _PARAMETERS, strict=False)
        ]
        if names[:3] != [*_PARAMETERS[:3]] or len(arguments) > 5 or None in names:
            self._refuse()
        values = [each.value if isinstance(each, ast.keyword) else each for each in arguments]
        (first, first_end), (second, second_end), (third, _) = (self._place(call, arguments, k) for k in range(3))
        before, after = self._around_array(values[0], first, first_end)
        start, _ = site.span(call)
        site.edit(start, first, before)
        site.edit(first_end, second, f"{after}.at[")
        # A call with lines of its own for its arguments keeps them.
        is_below = has_lines(site.source.text[site.span(call.func)[1] : first])
        lead = text_before(site.source, third) if is_below else ""
        line_break = f"{site.source.newline}{lead}" if is_below and not lead.strip() else ""
        site.edit(second_end, third, f"].{method}({line_break}")
        keywords = []
        for argument, name in zip(arguments[3:], names[3:], strict=True):
            if not isinstance(argument, ast.keyword):
                begin, _ = call_brackets(site.source, call).items[arguments.index(argument)]
                site.edit(begin, begin, f"{name}=")
            value = argument.value if isinstance(argument, ast.keyword) else argument
            keywords.append(ast.copy_location(ast.keyword(name, value), argument))
        array = values[0]
        if before.endswith("asarray("):
            array = ast.Call(ast.parse(before[:-1], mode="eval").body, [array], [])
        at = ast.Subscript(ast.Attribute(array, "at", ast.Load()), values[1], ast.Load())
        site.meant.put_back(call, ast.Call(ast.Attribute(at, method, ast.Load()), [values[2]], keywords))

    def _place(self, call: ast.Call, arguments: Sequence[ast.expr | ast.keyword], index: int) -> tuple[int, int]:
        """Where the value of an argument stands, with its parentheses."""
        argument = arguments[index]
        start, end = call_brackets(self.site.source, call).items[index]
        return value_start(self.site, argument) if isinstance(argument, ast.keyword) else start, end

    def _around_array(self, array: ast.expr, start: int, end: int) -> tuple[str, str]:
        """What stands before and behind the array, so that it is one of JAX, and `.at` belongs to all of it."""
        site, is_array = self.site, False
        if isinstance(array, ast.Call):
            is_array = site.resolve(array.func) in _METHODS
        if is_array or site.context.analysis(ValueClasses).of(site.module, array) == "jax.Array":
            # The brackets of the call held its lines together.
            is_whole = isinstance(array, _PRIMARY) and not needs_brackets(site.source.text[start:end])
            return ("", "") if is_whole or start < site.span(array)[0] else ("(", ")")
        return f"{site.spell('jax.numpy.asarray')}(", ")"
