"""Remove settings of flags that are gone, where JAX does today what they ask for.

    jax.config.update("jax_array", True)
    jax.config.update("jax_spmd_mode", "allow_all")
    ->
    ->  jax.config.update("jax_spmd_mode", "allow_all")  reported

Setting a flag that is gone raises. A flag that was on in the end is gone since that is how JAX works; a statement that
turns it on is removed, and so is one that turns off what went together with its flag. The index has the flags and their
defaults.

To check: nothing.

Refused: other values, and reads; a `target-jax` that still has the flag. Reported: names of gone flags in the
environment, which do nothing.
See https://docs.jax.dev/en/latest/config_options.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.statements import remove_statement
from mmmodernize.names.name_index import TITLES
from mmmodernize.names.part_index import old_flags
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses
from mmrewrite.results import Change
from mmrewrite.values.value import Value

_CONFIGS = frozenset(("jax.config", "jax.config.config", "flax.config"))
# Flags that were off in the end, and are gone since nothing is left to turn on.
_WENT_WITH_THEIR_FEATURE = frozenset(
    (
        *("jax_data_dependent_tracing_fallback", "jax_dynamic_shapes", "jax_host_callback_ad_transforms"),
        *("jax_host_callback_inline", "jax_host_callback_legacy", "jax_host_callback_outfeed"),
        *("jax_parallel_functions_output_gda", "jax_use_original_compilation_cache_key_generation"),
    )
)


class ReplaceFlags(ModernizeCodemod):
    """Removes statements, and reports the other uses of a flag."""

    extra_markers: ClassVar[tuple[bytes, ...]] = (b"jax_", b"JAX_", b"flax_", b"FLAX_")
    beside: ClassVar = ()
    words: ClassVar = ("jax_", "JAX_", "flax_", "FLAX_")

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Strings, attributes of configurations and keywords of JAX's functions that name a flag."""
        for node in module.strings:
            flag = str(node.value).lower().removeprefix("--")
            if flag in old_flags() and (_is_written_as_one(node) or _names_a_flag(module, node, context) is not False):
                yield Location(module, node, part=flag)
        for other in module.nodes_of(ast.Attribute):
            if other.attr in old_flags() and _is_config(module, other.value):
                yield Location(module, other, part=other.attr)
        for word in module.nodes_of(ast.keyword):
            call = module.parents[word] if word.arg in old_flags() else None
            function = module.full_name(call.func) if isinstance(call, ast.Call) else None
            if (function or "").startswith("jax."):
                yield Location(module, word, part=word.arg or "")

    @classmethod
    def change_of(cls, name: str) -> tuple[str, str, Change] | None:
        """A flag stops working where it is gone."""
        part = old_flags().get(name)
        return (part.package, part.since, "stops") if part is not None else None

    def rewrite(self) -> None:
        """Remove one statement, or report the use."""
        site, node = self.site, self.site.node
        if isinstance(node, ast.keyword):
            self._settle(node.arg or "", None)
            return
        if isinstance(node, ast.Attribute):
            assignment = site.module.parents[node]
            is_set = isinstance(assignment, ast.Assign) and assignment.targets == [node]
            self._settle(node.attr, assignment.value if isinstance(assignment, ast.Assign) and is_set else None)
            return
        assert isinstance(node, ast.Constant)
        text = str(node.value)
        if text.isupper():
            part = old_flags()[text.lower()]
            site.leave(f"`{text}` does nothing since {TITLES[part.package]} {part.since}, where this flag went")
        flag = text.removeprefix("--")
        if not _is_written_as_one(node) and _names_a_flag(site.module, node, site.context) is None:
            site.leave(f"if this is a flag: `{flag}` {old_flags()[flag].told('')}")
        call = site.module.parents.get(node)
        is_update = isinstance(call, ast.Call) and _config_method(site.module, call) == "update" and len(call.args) == 2
        self._settle(flag, call.args[1] if isinstance(call, ast.Call) and is_update else None)

    def _settle(self, flag: str, value: ast.expr | None) -> None:
        """Remove the statement that gives a flag its last default; refuse others."""
        part = old_flags()[flag]
        statement = self.site.statement
        is_set = isinstance(statement, ast.Assign) and statement.targets == [self.site.node]
        is_updated = isinstance(statement, ast.Expr) and self.site.module.parents.get(value) is statement.value  # type: ignore[arg-type]
        works = f"; {TITLES[part.package]} works as with `{part.default}`"
        if value is None or not (is_set or is_updated):
            self.refuse(f"`{flag}` {part.told('')}{works if part.default == 'True' else ''}")
        if part.default != "True" and flag not in _WENT_WITH_THEIR_FEATURE:
            self.refuse(f"`{flag}` {part.told('')}")
        if not isinstance(value, ast.Constant) or str(value.value) != part.default:
            self.refuse(f"`{flag}` {part.told('')}{works}")
        if part.package == "jax":
            self.site.needs(part.since, f"to do without `{flag}`")
        remove_statement(self.site, statement)


def _is_written_as_one(node: ast.Constant) -> bool:
    """Whether a string stands for a flag by its form: as a variable of the environment, or on a command line."""
    return str(node.value).isupper() or str(node.value).startswith("--")


def _names_a_flag(module: ModuleUses, node: ast.Constant, context: ModernizeContext) -> bool | None:
    """Whether a string is the name of a flag; None if it may be one.

    It is none where it is read by, and where it is the key of an array: a flag has a text, a number, or a truth value.
    """
    holder, computed = module.parents.get(node), context.analysis(_ComputedFlags)
    is_given = isinstance(holder, ast.Call) and node in holder.args[:2]
    if node in computed.strings or (is_given and _asks_a_config(module, holder)):
        return True
    is_none = isinstance(holder, ast.Expr) or (_is_read_by(module, node) and not computed.are_open)
    return False if is_none else None


def _is_read_by(module: ModuleUses, node: ast.Constant) -> bool:
    """Whether a string only asks for an entry, or is the key of an array."""
    match module.parents.get(node):
        case ast.Dict(keys=keys, values=values) if node in keys:
            value = values[keys.index(node)]
            made = module.full_name(value.func) if isinstance(value, ast.Call) else None
            return (made or "").startswith(("jax.", "numpy."))
        case ast.Call(func=ast.Attribute(attr="get" | "pop"), args=args):
            return node in args[:1]
        case ast.Compare() | ast.Subscript(ctx=ast.Load() | ast.Del()):
            return True
        case _:
            return False


def _config_method(module: ModuleUses, call: ast.Call) -> str | None:
    """The method of a configuration that a call calls, else None."""
    return call.func.attr if isinstance(call.func, ast.Attribute) and _is_config(module, call.func.value) else None


def _asks_a_config(module: ModuleUses, call: ast.AST | None) -> bool:
    """Whether a call is of a method of a configuration, or is given one, as `setattr` is."""
    return isinstance(call, ast.Call) and (
        _config_method(module, call) is not None or any(_is_config(module, each) for each in call.args)
    )


def _is_config(module: ModuleUses, node: ast.expr) -> bool:
    """Whether an expression is a configuration itself."""
    return module.full_name(node) in _CONFIGS


class _ComputedFlags:
    """The flags that a project sets or reads by what is no constant there.

    Attributes:
        strings: The strings that are seen to come there.
        are_open: Whether others may.
    """

    def __init__(self, context: ModernizeContext) -> None:
        flow = context.flow
        names = [
            Value(module, name)
            for module in context.modules.values()
            if any(module.names_below(_CONFIGS))
            for call in module.nodes_of(ast.Call)
            if (name := _computed_name(module, call)) is not None
        ]
        found = [flow.may(name, _string) for name in names]
        self.strings = {string for each in found for string in each.answers}
        self.are_open = any(each.unknown or each.others for each in found)


def _computed_name(module: ModuleUses, call: ast.Call) -> ast.expr | None:
    """The name of a flag that a call is given, by a method of a configuration or beside one, if it is no constant."""
    is_method = _config_method(module, call) is not None
    names = (
        call.args[:1] if is_method else call.args[1:2] if any(_is_config(module, each) for each in call.args) else ()
    )
    return next((each for each in names if not isinstance(each, ast.Constant)), None)


def _string(value: Value) -> ast.Constant | None:
    return value.head if isinstance(value.head, ast.Constant) and not value.path else None
