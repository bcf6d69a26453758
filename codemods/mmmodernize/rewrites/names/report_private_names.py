"""Report private names of JAX and its libraries, those below a part `_src`, that a release removed.

    from jax._src import core
    from jax._src.api import FLAGS
    known = isinstance(x, core.ConcreteArray)
    ->  model.py:2:26: `jax._src.api.FLAGS` is gone since JAX 0.4.9; import `jax`, and write `jax.config`
    ->  model.py:3:23: `jax._src.core.ConcreteArray` is gone since JAX 0.4.36; write ...

Old programs import them often, and such an import raises. The names are those of an index that is made from the
packages' releases (`tools/index_names.py`): which release removed what, and where the last one has the same. An import
that fails is reported for all that uses what it binds; besides, each use of such a name through its module, each
`import *` that gives one, and each text by which one is looked up, imported or patched.

To check: each use by hand; nothing is written.

Refused: every use.
See https://docs.jax.dev/en/latest/jep/9419-jax-versioning.html
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.doubts.looked_up_names import homes_asked, takes_full_names
from mmmodernize.modules.passed_modules import star_origins
from mmmodernize.names.gate import uses_any
from mmmodernize.names.name_index import PACKAGES, ROOTS
from mmmodernize.names.private_index import PART, PRIVATE_WORDS, is_private, last_parts, private_name, private_names
from mmmodernize.sites.site import Location, ModernizeContext
from mmmodernize.sites.version_guards import guard_of
from mmrewrite.project.uses import ImportedName, ModuleUses
from mmrewrite.results import Change
from mmrewrite.source.names import dotted_name, root_of


class ReportPrivateNames(ModernizeCodemod):
    """Writes nothing."""

    @classmethod
    def may_be_in(cls, data: bytes) -> bool:
        """A file without the word `_src` has none."""
        return uses_any(data, PACKAGES, PRIVATE_WORDS)

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """The imports that fail, and what else names something that is gone."""
        if not context.analysis(_PrivateModules).are_named:
            return
        failing = [item for item in module.imported if _fails(item, module, context)]
        yield from (Location(module, item.alias, part=item.name) for item in failing)
        wanted = {
            name for name in module.names_below(ROOTS) if name in private_names() and _is_told(name, module, context)
        }
        # `import jax._src.core` binds `jax`.
        binding = [item for item in failing if item.alias.asname or isinstance(item.statement, ast.ImportFrom)]
        raising = [item for item in binding if guard_of(module, item.statement) is None]
        for use in module.uses(wanted):
            # What an import binds that raises is told there, and an alias where it is made.
            if (use.is_direct or not _is_alias(module, use.node)) and not _comes_by(raising, module, use.node):
                yield Location(module, use.node, use)
        if PART in module.facts.source.text:
            yield from _by_star(module, context)
            yield from _by_text(module, context)

    @classmethod
    def change_of(cls, name: str) -> tuple[str, str, Change] | None:
        """The release that removed it."""
        row = private_name(name)
        assert row is not None
        return row.package, row.changes[-1][0], "stops"

    def rewrite(self) -> None:
        """Report the use."""
        name = self.site.location.reference.name
        row = private_name(name)
        assert row is not None
        self.refuse(f"`{row.name}` {row.history}; {row.advice}")


class _PrivateModules:
    """Whether any file of the run names a private module; where none does, no name of a file leads to one."""

    def __init__(self, context: ModernizeContext) -> None:
        self.are_named = any(PART in module.facts.source.text for module in context.modules.values())


def _is_told(name: str, module: ModuleUses, context: ModernizeContext) -> bool:
    """Whether a name is gone, no other codemod has it, and it is not the project's own, as in a copy of JAX."""
    is_gone = name not in context.owners and private_name(name) is not None
    return is_gone and not context.project.holds(name, module.facts)


def _fails(item: ImportedName, module: ModuleUses, context: ModernizeContext) -> bool:
    """Whether an import fails, and no other codemod has what is used of it."""
    if not is_private(item.name) or not _is_told(item.name, module, context):
        return False
    return not module.uses_any(context.old_names_below(item.name))


def _is_alias(module: ModuleUses, node: ast.expr) -> bool:
    """Whether the first name of an expression stands for something that is gone itself."""
    first = root_of(node)
    assert isinstance(first, ast.expr)
    return private_name(module.full_name(first) or "") is not None


def _comes_by(items: Collection[ImportedName], module: ModuleUses, node: ast.expr) -> bool:
    """Whether nothing but some imports binds the first name of an expression."""
    first = root_of(node)
    if not isinstance(first, ast.Name):
        return False
    owner = module.scope_of(first).owner(first.id)
    statements = {item.statement for item in items if item.local == first.id}
    return owner is not None and all(each.statement in statements for each in owner.bindings[first.id])


def _by_star(module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
    """Each `import *` of a module that is gone, and the names that one gave which are gone."""
    names = module.facts.names
    for star in names.stars:
        origin = names.home_of(star)
        if origin is not None and is_private(origin) and _is_told(origin, module, context):
            yield Location(module, star, part=origin)
            continue
        origins = [each for each in star_origins(module.facts, star, context.project) if is_private(each)]
        for head, chain in module.chains if origins else ():
            for node in chain if module.scope_of(head).owner(head.id) is None else ():
                full = next(
                    (name for each in origins if (name := f"{each}.{dotted_name(node)}") in private_names()), None
                )
                if full is not None and _is_told(full, module, context):
                    yield Location(module, node, part=full)
                    break


def _by_text(module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
    """The names that stand as text: in full, or as what a module is asked for."""
    for string in module.strings:
        text = str(string.value)
        if PART in text:
            holder = module.parents.get(string)
            is_full = isinstance(holder, ast.Call) and string in holder.args[:1] and takes_full_names(module, holder)
            found = [text.replace(":", ".")] if is_full else []
        else:
            asked = homes_asked(module, string, ()) if text in last_parts() else ()
            found = [full for home in asked if (full := f"{home}.{text}") in private_names()]
        yield from (Location(module, string, part=name) for name in found if _is_told(name, module, context))
