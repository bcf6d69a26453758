"""Write today's names of layouts. One of them meant another class before.

    from jax.experimental.layout import DeviceLocalLayout, Layout
    jax.device_put(x, Layout(DeviceLocalLayout((1, 0)), sharding))
    compiled.input_layouts()
    ->  from jax.experimental.layout import Format, Layout
    ->  jax.device_put(x, Format(Layout((1, 0)), sharding))
    ->  compiled.input_formats

In JAX 0.7 `Layout` became `Format`, `DeviceLocalLayout` became `Layout`, and `layout` of arrays, `input_layouts` and
`output_layouts` of compiled programs became `format`, `input_formats` and `output_formats`. A file that uses
`DeviceLocalLayout` or calls `Layout` with a layout or a sharding means the old one, and a file that uses `Format` or
calls it with an order of dimensions that of today. The attributes are renamed where the source shows a compiled program
or a layout, and in files that mean the old classes.

To check: nothing.

Refused: a `Layout` of which the file does not show which it is; `x.layout` in a file that means the old ones; a
`target-jax` before 0.7. Reported, not edited: the attributes of other objects, in projects that give no object one of
that name.
See https://docs.jax.dev/en/latest/changelog.html for JAX 0.7.0.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.calls.call_forms import keywords_of
from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.modules.project_names import OwnMembers
from mmmodernize.sites.site import EVERYWHERE, Location, ModernizeContext
from mmmodernize.sites.version_guards import guard_of
from mmmodernize.types.value_classes import ValueClasses
from mmrewrite.project.uses import ModuleUses

_HOME = "jax.experimental.layout"
_LAYOUT, _LOCAL, _FORMAT = (f"{_HOME}.{name}" for name in ("Layout", "DeviceLocalLayout", "Format"))
_CHANGED = ("jax", "0.7.0")
_CONSTRAINT = f"{_HOME}.with_dll_constraint"
_ATTRIBUTES = {
    "device_local_layout": "layout",
    "input_layouts": "input_formats",
    "output_layouts": "output_formats",
}
_METHODS = frozenset(("input_layouts", "output_layouts"))
_OLD_KEYWORDS = frozenset(("device_local_layout", "sharding"))
_NEW_KEYWORDS = frozenset(("major_to_minor", "tiling", "sub_byte_element_size_in_bits"))


class ReplaceLayouts(ModernizeCodemod):
    """Renames both classes together, and the attributes."""

    names: ClassVar[tuple[str, ...]] = (_LOCAL, _LAYOUT, f"{_LOCAL}.AUTO")
    extra_markers: ClassVar[tuple[bytes, ...]] = tuple(name.encode() for name in _ATTRIBUTES)
    beside: ClassVar = (_CONSTRAINT,)
    words: ClassVar = _ATTRIBUTES
    changed_in: ClassVar = {"": (*_CHANGED, "stops"), _LAYOUT: (*_CHANGED, "changes")}

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Uses of the classes, and attributes in modules beside JAX that define none of that name."""
        meaning, own = _meaning(module), context.analysis(OwnMembers).names
        for use in module.uses(cls.names):
            if use.name != _LAYOUT or meaning != "today" or _is_old(module, use.node):
                yield Location(module, use.node, use)
        if not context.flow.is_beside(module, "jax"):
            return
        for node in module.nodes_of(ast.Attribute):
            if isinstance(node.ctx, ast.Load) and node.attr not in own:
                is_layout = meaning == "old" and node.attr == "layout" and context.name_of(module, node) is None
                if node.attr in _ATTRIBUTES or is_layout:
                    yield Location(module, node)

    def rewrite(self) -> None:
        """Rename one use."""
        site = self.site
        if site.use is None:
            self._rename_attribute()
            return
        if not self.use.is_direct:
            return
        if self.use.name != _LAYOUT:
            self._rename(_LAYOUT)
            return
        if _meaning(site.module) is None and not _is_old(site.module, self.use.node):
            self.refuse(
                "`Layout` is what JAX before 0.7 called `DeviceLocalLayout`, and what it called `Layout` is `Format`; "
                "write `jax.experimental.layout.Format` if a sharding belongs to it"
            )
        self._rename(_FORMAT)
        for keyword in keywords_of(site.module, self.use.node):
            if keyword.arg == "device_local_layout":
                site.rename_keyword(keyword, "layout")

    def _rename(self, new: str) -> None:
        site, own = self.site, new.rpartition(".")[2]
        site.needs("0.7", f"`{new}`, today's name of `{self.use.name}`,")
        node = self.use.node
        is_auto = self.use.name.endswith(".AUTO")
        held = node.value if is_auto and isinstance(node, ast.Attribute) else node
        if isinstance(held, ast.Attribute):
            site.rename_attribute(held, own)
        else:
            # A name for today's `Layout` is one that stood for the old one: all uses of that become `Format`.
            name = site.draft.imports.existing(new, site.scope, EVERYWHERE)
            if name is not None:
                site.draft.spelled.add(name.partition(".")[0])
            site.replace(held, name or site.draft.imports.member(_HOME, own, (own,)))

    def _rename_attribute(self) -> None:
        site, node = self.site, self.site.node
        assert isinstance(node, ast.Attribute)
        if node.attr == "layout":
            self.refuse("if this is an array, its `layout` is `format` since JAX 0.7; write that")
        is_compiled = (
            node.attr in _METHODS
            and site.context.analysis(ValueClasses).of(site.module, node.value) == "jax.stages.Compiled"
        )
        if not is_compiled and _meaning(site.module) != "old":
            what = "a compiled program" if node.attr in _METHODS else "a layout"
            site.leave(f"if this is {what}: since JAX 0.7 its `{node.attr}` is `{_ATTRIBUTES[node.attr]}`; write that")
        site.needs("0.7", f"`{_ATTRIBUTES[node.attr]}`, today's name of `{node.attr}`,")
        call = site.module.call_at(node)
        site.rename_attribute(node, _ATTRIBUTES[node.attr])
        if node.attr in _METHODS and call is not None and not call.args:
            # It was a method up to JAX 0.4.
            site.drop_brackets(call)


def _is_old(module: ModuleUses, function: ast.expr) -> bool:
    """Whether a use of `Layout` is called, or will be, with what only the old one takes."""
    return any(keyword.arg in _OLD_KEYWORDS for keyword in keywords_of(module, function))


def _meaning(module: ModuleUses) -> str | None:
    """Whether `Layout` in a module is the "old" one or that of "today"; None if nothing shows it."""
    if any(guard_of(module, use.node) is None for use in module.uses((_LOCAL, f"{_LOCAL}.AUTO", _CONSTRAINT))):
        return "old"
    if module.uses_any((_FORMAT,)):
        return "today"
    for use in module.uses((_LAYOUT,)):
        call = module.call_at(use.node) if guard_of(module, use.node, _CHANGED) is None else None
        if call is None:
            continue
        keywords = {keyword.arg for keyword in call.keywords}
        first = call.args[0] if call.args else None
        if _is_old(module, use.node) or (isinstance(first, ast.Constant) and first.value is None):
            return "old"
        if keywords & _NEW_KEYWORDS or isinstance(first, ast.Tuple | ast.List):
            return "today"
    return None
