"""Modules of JAX and its libraries that a program passes on as values, as in `self.jax = jax` and `f(jax.numpy)`.

No chain of names leads from there to what is read of them elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache

from mmmodernize.modules.project_names import ToldNames
from mmmodernize.sites.site import ModernizeContext
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.uses import ModuleUses

# Calls that keep nothing of a module that they are given first.
ASK_ONLY = frozenset(
    (
        *(f"builtins.{name}" for name in ("delattr", "dir", "getattr", "hasattr", "id", "print", "repr", "setattr")),
        *(f"unittest.mock.{name}" for name in ("patch.object", "patch.multiple")),
    )
)
_DEEPEST = 4


@lru_cache(maxsize=4)
def _homes(names: frozenset[str]) -> frozenset[str]:
    """The modules of names."""
    parts = (name.split(".") for name in names)
    homes = {".".join(each[:length]) for each in parts for length in range(1, len(each))}
    # Classes hold members, and are bases and annotations.
    return frozenset(home for home in homes if home.rpartition(".")[2].islower())


class PassedModules:
    """The modules with old names that are passed on as values.

    Attributes:
        homes: Every module of JAX and its libraries that had an old name.
        places: Those that are passed on, with the first place of each.
        loose: These, and those that some name or text in the project may be, without a chain of names to say so.
        of_stars: The modules out of the project whose names a module has by `import *`.
    """

    def __init__(self, context: ModernizeContext) -> None:
        self.homes = _homes(context.analysis(ToldNames).names)
        self.places: dict[str, str] = {}
        self.loose: set[str] = set()
        self.of_stars: dict[ModuleUses, Sequence[str]] = {}
        own = {module.facts.names.name: module for module in context.modules.values()}
        looked_into: set[str] = set()
        for module in context.modules.values():
            for name, node in self._passed(module):
                if name in self.homes:
                    self.places.setdefault(name, f"{module.facts.path}:{node.lineno}")
                looked_into.update({name, name.rpartition(".")[0]} & own.keys())
            uses = (use for use in module.uses(own) if not isinstance(module.parents[use.node], ast.Attribute))
            looked_into.update(use.name for use in uses)
            self.loose.update(self._loose(module))
            for star in module.facts.names.stars:
                self.loose.update(self._by_star(module.facts, star, context.project, set()))
                origins = [*star_origins(module.facts, star, context.project)]
                given = {f"{origin}.{name}" for origin in origins for name in module.heads} & self.homes
                self.of_stars[module] = [*self.of_stars.get(module, ()), *origins]
                self.loose |= given
        for name in looked_into:
            self.loose.update(self._bound_in(own[name]))
        self.loose |= self.places.keys()

    def _bound_in(self, module: ModuleUses) -> Iterator[str]:
        """What is read of a module of the project that is a value itself, in `getattr(compat, "jax")`."""
        names = module.facts.names
        for bindings in names.scope.bindings.values():
            for each in bindings:
                name = each.target or (names.resolve(each.value, names.scope) if each.value is not None else None)
                if name in self.homes:
                    yield name

    def _loose(self, module: ModuleUses) -> Iterator[str]:
        names = module.facts.names
        for use in module.uses(self.homes):
            holder = module.parents[use.node]
            if isinstance(holder, ast.Assign | ast.AnnAssign | ast.NamedExpr):
                targets = holder.targets if isinstance(holder, ast.Assign) else [holder.target]
                if any(module.full_name(each) != use.name for each in targets):
                    yield use.name
            is_table = isinstance(holder, ast.Attribute) and holder.attr == "__dict__"
            if (isinstance(holder, ast.Call) or is_table) and any(
                isinstance(each, ast.FunctionDef) and each.name in ("__getattr__", "__getattribute__")
                for each in module.above(holder)
            ):
                yield use.name
        in_classes = {name for scope in names.inner.values() if scope.kind == "class" for name in scope.bindings}
        for item in module.imported:
            if item.local in in_classes and item.name in self.homes:
                yield item.name
            local = item.name if item.alias.asname is not None else item.local
            if local in self.homes and names.resolve_dotted(item.local, names.scopes[item.statement]) != local:
                yield local
        yield from (str(string.value) for string in module.strings if string.value in self.homes)

    def _passed(self, module: ModuleUses) -> Iterator[tuple[str, ast.expr | ast.alias]]:
        for use in module.uses(self.homes):
            if not isinstance(module.parents[use.node], ast.Attribute) and not _is_followed(module, use.node):
                yield use.name, use.node
        for item in module.imported:
            if item.name in self.homes and module.facts.names.scopes[item.statement].kind == "class":
                yield item.name, item.alias
        for node in module.nodes_of(ast.Call, ast.Subscript):
            name = module_by_name(module, node)
            if name is not None:
                yield name, node

    def _by_star(self, facts: Facts, star: ast.ImportFrom, project: Project, seen: set[str]) -> Iterator[str]:
        """The modules that modules of the project give by `import *`."""
        origin = facts.names.home_of(star)
        inner = project.module(origin, facts) if origin is not None and origin not in seen else None
        if inner is None or origin is None:
            return
        seen.add(origin)
        for bindings in inner.names.scope.bindings.values():
            yield from (each.target for each in bindings if each.target in self.homes)
        for each in inner.names.stars:
            yield from self._by_star(inner, each, project, seen)


def star_origins(
    facts: Facts, star: ast.ImportFrom, project: Project, seen: frozenset[str] = frozenset()
) -> Iterator[str]:
    """The modules out of the project whose names an `import *` gives, also by way of the project's own."""
    origin = facts.names.home_of(star)
    inner = project.module(origin, facts) if origin is not None and origin not in seen else None
    if inner is not None and origin is not None:
        for each in inner.names.stars:
            yield from star_origins(inner, each, project, seen | {origin})
    elif origin is not None and not origin.startswith("."):
        yield origin


def _is_followed(module: ModuleUses, node: ast.expr) -> bool:
    """Whether names lead on from a module that is used here, or nothing of it is kept."""
    holder = module.parents[node]
    if isinstance(holder, ast.Call):
        function = module.full_name(holder.func) or ""
        if function == "importlib.reload":
            return isinstance(module.parents[holder], ast.Expr)
        is_first = node in holder.args if function == "builtins.print" else node in holder.args[:1]
        return is_first and function in ASK_ONLY
    if isinstance(holder, ast.Assign):
        is_plain = all(isinstance(target, ast.Name) for target in holder.targets)
        return is_plain and module.facts.names.scopes[holder].kind != "class"
    if isinstance(holder, ast.NamedExpr):
        is_own = module.scope_of(holder).kind == "class"
        return not is_own and isinstance(module.parents[holder], ast.Compare | ast.Expr | ast.If | ast.While)
    return isinstance(holder, ast.Compare | ast.Expr)


def module_by_name(module: ModuleUses, node: ast.expr) -> str | None:
    """The full name of what `importlib.import_module("jax")`, `sys.modules["jax"]` and the like give, else None."""
    if isinstance(node, ast.Subscript):
        return _of_table(module, node.value, text_of(module, node.slice))
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop", "setdefault") and node.args:
        return _of_table(module, node.func.value, text_of(module, node.args[0]))
    asked = node.args[0] if node.args else next((each.value for each in node.keywords if each.arg == "name"), None)
    first = text_of(module, asked) if asked is not None else None
    own = text_of(module, node.args[1]) if len(node.args) > 1 else None
    may_reload = len(node.args) == 1 and not (isinstance(node.func, ast.Attribute) and node.func.attr != "reload")
    if first is None and own is None and not may_reload:
        # Most calls are given no text, and to resolve what is called takes longest.
        return None
    function = module.full_name(node.func)
    if function == "builtins.getattr" and own is not None:
        home = module.full_name(node.args[0]) or module_by_name(module, node.args[0])
        return f"{home}.{own}" if home is not None else None
    if function == "importlib.reload" and node.args:
        return module.full_name(node.args[0])
    if first is None:
        return None
    if function == "importlib.import_module":
        given = [*node.args[1:], *(keyword.value for keyword in node.keywords if keyword.arg == "package")]
        package = text_of(module, given[0]) if given else None
        return f"{package}{first}" if first.startswith(".") and package is not None else first
    if function == "pkgutil.resolve_name":
        return first.replace(":", ".")
    if function == "builtins.__import__":
        is_inner = len(node.args) > 3 or any(keyword.arg == "fromlist" for keyword in node.keywords)
        return first if is_inner else first.partition(".")[0]
    return None


def _of_table(module: ModuleUses, table: ast.expr, key: str | None) -> str | None:
    """What `sys.modules` and the tables of names of the module hold under a key."""
    if key is None:
        return None
    if module.full_name(table) == "sys.modules":
        return key
    if isinstance(table, ast.Call) and not table.args:
        scope = module.scope_of(table)
        function = module.facts.names.resolve(table.func, scope)
        if function in ("builtins.globals", "builtins.locals", "builtins.vars"):
            return module.facts.names.resolve_dotted(
                key, module.facts.names.scope if function == "builtins.globals" else scope
            )
    return None


def text_of(module: ModuleUses, node: ast.expr, depth: int = 0) -> str | None:
    """The text that an expression is, as far as the module shows it: also a name that is bound once, and a sum."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if depth > _DEEPEST:
        return None
    parts: list[str | None] = [None]
    if isinstance(node, ast.JoinedStr):
        inner = (each.value if isinstance(each, ast.FormattedValue) else each for each in node.values)
        parts = [text_of(module, each, depth + 1) for each in inner]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [text_of(module, node.left, depth + 1), text_of(module, node.right, depth + 1)]
    elif isinstance(node, ast.Name):
        binding = module.facts.names.binding(node.id, module.scope_of(node))
        if binding is not None and binding.value is not None:
            parts = [text_of(module, binding.value, depth + 1)]
    texts = [part for part in parts if part is not None]
    return "".join(texts) if len(texts) == len(parts) else None
