"""Call the host by today's callbacks instead of `jax.experimental.host_callback`.

    y = hcb.call(np.linalg.eigvals, x, result_shape=x)
    hcb.id_tap(log, loss)
    loss = hcb.id_print(loss, what="loss")
    hcb.barrier_wait()
    ->  y = io_callback(np.linalg.eigvals, x, x, ordered=True)
    ->  jax.debug.callback(lambda arg: log(jax.tree.map(np.asarray, arg), ()), loss, ordered=True)
    ->  jax.debug.print("what: loss\\n{}", loss, ordered=True)
    ->  jax.effects_barrier()

This is what JAX 0.4.35 itself did for the old functions. Host functions got NumPy arrays and get JAX's today, so those
that do more with them than NumPy's own functions do are wrapped, or convert them in a `lambda`. An `id_tap` or
`id_print` whose value is used must be a statement `y = ...` or `return ...` with a name as its argument, or with a
`result=` that runs nothing but JAX; that is then used. Constants that `id_tap` passes on to the function by name are
passed in the wrapper.

To check: `ordered=True` keeps the order of calls, as before, but raises under `vmap`, `pmap` and on several devices;
leave it out there. `id_print` laid out trees in its own way.

Refused: other arguments for the function of `id_tap`, `tap_with_device`, `call_with_device`, `device_index`,
`output_stream`, `callback_flavor`, results by number, the functions as values, and an `id_tap` or `id_print` within an
expression; each with the text to write.
See https://docs.jax.dev/en/latest/external-callbacks.html
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import ClassVar, NoReturn

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.arguments import exchange_keywords, insert_argument
from mmrewrite.source.brackets import bracketless_text, text_before, tokens_between
from mmrewrite.source.calls import stars_of
from mmrewrite.source.spans import begins_its_line

_HOME = "jax.experimental.host_callback"
_CALL, _TAP, _PRINT = f"{_HOME}.call", f"{_HOME}.id_tap", f"{_HOME}.id_print"
_BARRIERS = frozenset((f"{_HOME}.barrier_wait", f"{_HOME}.stop_outfeed_receiver"))
_DEVICES = frozenset(("tap_with_device", "call_with_device", "device_index", "callback_flavor", "output_stream"))
_TAKE_ANY_ARRAY = ("numpy.", "scipy.", "builtins.")
_OF_NUMPY = ("numpy.", "scipy.")
_TO_NUMBERS = ("builtins.float", "builtins.int", "builtins.bool", "builtins.len")
_NESTED = (ast.Lambda, ast.NamedExpr, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_PURE = ("jax.numpy.", "jax.lax.", "jax.nn.")
_PLAIN = (
    *(ast.Name, ast.Constant, ast.Attribute, ast.BinOp, ast.UnaryOp, ast.Subscript, ast.Slice, ast.Call, ast.keyword),
    *(ast.Tuple, ast.List, ast.Dict, ast.expr_context, ast.operator, ast.unaryop),
)
_WRITE = {
    _CALL: "write `jax.experimental.io_callback(f, jax.ShapeDtypeStruct(shape, dtype), x, ordered=True)`, or "
    "`jax.pure_callback(f, jax.ShapeDtypeStruct(shape, dtype), x)` for an `f` without effects",
    _TAP: "write `jax.debug.callback(f, x, ordered=True)` as a statement, and use `x` itself for the result; `f` takes "
    "no `transforms` then",
    _PRINT: 'write `jax.debug.print("{}", x, ordered=True)` as a statement, and use `x` itself for the result',
    **dict.fromkeys(_BARRIERS, "write `jax.effects_barrier()`"),
}


class ReplaceHostCallback(ModernizeCodemod):
    """Replaces calls of the module's functions."""

    names: ClassVar[tuple[str, ...]] = tuple(_WRITE)

    @classmethod
    def markers(cls) -> tuple[bytes, ...]:
        """The names of the module, since `call` is a word of most files."""
        return (b"host_callback", b"hcb", b"id_tap", b"id_print", b"barrier_wait", b"stop_outfeed_receiver")

    def rewrite(self) -> None:
        """Replace one call."""
        if not self.use.is_direct:
            return
        name, call = self.use.name, self.site.call
        if call is None:
            self.refuse(f"`{name}` is used as a value and is gone since JAX 0.8; {_WRITE[name]}")
        if name in _BARRIERS:
            self.site.replace(call, f"{self.site.spell('jax.effects_barrier')}()")
            return
        keywords = {word.arg: word for word in call.keywords}
        if stars_of(call):
            self._refuse("`*` or `**` hide the arguments")
        if _DEVICES & keywords.keys():
            option = min(word for word in keywords if word in _DEVICES)
            self._refuse(f"`{option}=` has no successor")
        if len(call.args) != (1 if name == _PRINT else 2):
            self._refuse("the arguments before the keywords are not the function and its argument")
        if name == _CALL:
            self._rewrite_call(call, keywords)
        elif name == _TAP:
            self._rewrite_tap(call, keywords)
        else:
            self._rewrite_print(call, keywords)

    def _refuse(self, because: str) -> NoReturn:
        self.refuse(f"`{self.use.name}` is gone since JAX 0.8, and {because}; {_WRITE[self.use.name]}")

    def _rewrite_call(self, call: ast.Call, keywords: Mapping[str | None, ast.keyword]) -> None:
        """`call(f, x, result_shape=s)` is `io_callback(f, s, x, ordered=True)`."""
        site, result = self.site, "None"
        if keywords.keys() - {"result_shape"}:
            self._refuse("not all of its keywords are known")
        shape = keywords.get("result_shape")
        if shape is not None:
            if isinstance(shape.value, ast.Constant) and shape.value.value is not None:
                self._refuse("a number stands for a shape")
            result = site.text(shape.value)
        self._wrap_host_function(call.args[0], taps=False)
        insert_argument(site, call, call.args[1], result)
        exchange_keywords(site, call, [shape] if shape is not None else [], "ordered=True")
        site.replace(self.use.node, site.draft.imports.member("jax.experimental", "io_callback", ("io_callback",)))

    def _rewrite_tap(self, call: ast.Call, keywords: Mapping[str | None, ast.keyword]) -> None:
        """`id_tap(f, x)` is `debug.callback(f, x, ordered=True)`, and `x`."""
        given = [word for word in call.keywords if word.arg != "result"]
        if not all(isinstance(word.value, ast.Constant) for word in given):
            self._refuse("keywords for the function are computed")
        given_text = "".join(f", {word.arg}={self.site.text(word.value)}" for word in given)
        self._wrap_host_function(call.args[0], taps=True, also=given_text)
        self._write(call, "jax.debug.callback", call.args[1], keywords)

    def _rewrite_print(self, call: ast.Call, keywords: Mapping[str | None, ast.keyword]) -> None:
        """`id_print(x, what="loss")` is `debug.print("what: loss\\n{}", x, ordered=True)`, and `x`."""
        shown: list[str] = []
        for word in sorted(word for word in keywords if word is not None and word not in ("result", "threshold")):
            value = keywords[word].value
            if not isinstance(value, ast.Constant) or not isinstance(value.value, str | int | float):
                self._refuse(f"`{word}=` is computed")
            shown.append(f"{word}: {value.value}")
        line = " ".join(shown).replace("{", "{{").replace("}", "}}")
        text = json.dumps(f"{line}\n{{}}" if line else "{}")
        insert_argument(self.site, call, call.args[0], text)
        self._write(call, "jax.debug.print", call.args[0], keywords)

    def _wrap_host_function(self, function: ast.expr, *, taps: bool, also: str = "") -> None:
        """Give what is called on the host NumPy arrays, as before."""
        site = self.site
        name = site.resolve(function) if isinstance(function, ast.Name | ast.Attribute) else None
        if not taps and ((name or "").startswith(_TAKE_ANY_ARRAY) or self._takes_any_array(function)):
            return
        if isinstance(function, ast.Lambda) and not also and self._reduce(function, taps=taps):
            return
        is_name = isinstance(function, ast.Name | ast.Attribute)
        arrays = f"{site.spell('jax.tree.map')}({site.spell('numpy.asarray')}, arg)"
        after = f"({arrays}{', ()' if taps else ''}{also})"
        site.wrap(function, "lambda arg: " if is_name else "lambda arg: (", after if is_name else f"){after}")

    def _takes_any_array(self, function: ast.expr) -> bool:
        """Whether a function of the module does with its argument what is the same for JAX's arrays."""
        found = self.site.context.flow.function_at(self.site.module, function)
        if found is None or found[0] is not self.site.module or not found[1].args.args:
            return False
        return all(map(self._is_for_any_array, _uses_of(found[1].args.args[0].arg, found[1].body)))

    def _is_for_any_array(self, use: ast.Name) -> bool:
        """Whether an argument is given to what takes any array."""
        holder = self.site.module.parents[use]
        if not isinstance(holder, ast.Call) or use not in holder.args or isinstance(use.ctx, ast.Store):
            return False
        return (self.site.resolve(holder.func) or "").startswith((*_OF_NUMPY, *_TO_NUMBERS))

    def _reduce(self, function: ast.Lambda, *, taps: bool) -> bool:
        """Have a `lambda` itself take JAX's array and no transforms, if it reads them once, or where it is the same."""
        site, parameters = self.site, function.args.args
        others = (function.args.posonlyargs, function.args.kwonlyargs, function.args.vararg, function.args.kwarg)
        if any(others) or function.args.defaults or len(parameters) != (2 if taps else 1):
            return False
        uses = _uses_of(parameters[0].arg, [function.body])
        converted = [use for use in uses if not self._is_for_any_array(use)]
        is_plain = not any(isinstance(node, _NESTED) for node in ast.walk(function.body))
        if any(_uses_of(each.arg, [function.body]) for each in parameters[1:]) or not is_plain or len(converted) > 1:
            return False
        for use in converted:
            site.wrap(use, f"{site.spell('jax.tree.map')}({site.spell('numpy.asarray')}, ", ")")
        for each in parameters[1:]:
            site.edit(site.span(parameters[0])[1], site.span(each)[1], "")
            site.meant.remove(each)
        return True

    def _write(
        self, call: ast.Call, function: str, argument: ast.expr, keywords: Mapping[str | None, ast.keyword]
    ) -> None:
        """Write a call without result, and what its value was in a statement behind it."""
        site, statement = self.site, self.site.module.parents.get(call)
        result = keywords.get("result")
        exchange_keywords(site, call, keywords.values(), "ordered=True")
        site.replace(self.use.node, site.spell(function))
        if isinstance(statement, ast.Expr):
            return
        value = result.value if result is not None else argument
        is_alone = isinstance(statement, ast.Return) or (
            isinstance(statement, ast.Assign) and len(statement.targets) == 1 and statement.value is call
        )
        if not is_alone or not (isinstance(value, ast.Name) or (result is not None and self._may_come_later(value))):
            self._refuse("its result is used within an expression")
        assert isinstance(statement, ast.Return | ast.Assign)
        start, end = site.span(statement)
        indent = text_before(site.source, start)
        rest = site.source.text[end : site.source.line_end(site.source.position(end)[0])]
        shares_line = not begins_its_line(site.source, statement) or rest.lstrip()[:1] == ";"
        separator = "; " if shares_line else f"{site.source.newline}{indent}"
        found = tokens_between(site.source, start, end)
        is_return = isinstance(statement, ast.Return)
        sign = 0 if is_return else next(index for index, token in enumerate(found) if token.text == "=")
        begin = next(token for token in found[sign + 1 :] if token.is_code).start
        head = site.source.text[start : found[sign].end]
        site.edit(start, begin, "")
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        is_kept = isinstance(target, ast.Name) and isinstance(value, ast.Name) and target.id == value.id
        if not is_kept:
            site.edit(end, end, f"{separator}{head} {bracketless_text(site.text(value))}")
        site.meant.split(statement, call, value, is_kept=is_kept)

    def _may_come_later(self, value: ast.expr) -> bool:
        """Whether a value is the same behind the call: it runs nothing but JAX, and nothing in it is rewritten."""
        module, context = self.site.module, self.site.context
        nodes = [*ast.walk(value)]
        calls = [self.site.resolve(node.func) or "" for node in nodes if isinstance(node, ast.Call)]
        return (
            all(isinstance(node, _PLAIN) for node in nodes)
            and all(name.startswith(_PURE) for name in calls)
            and not any(use.node in nodes for use in module.uses(context.owners))
        )


def _uses_of(name: str, body: Sequence[ast.AST]) -> list[ast.Name]:
    """The places of a name in some code."""
    nodes = (node for part in body for node in ast.walk(part))
    return [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
