"""Flax modules and functions that `nn.scan` and `nnx.scan` lift into a scan over layers."""

from __future__ import annotations

import ast

from mmrewrite.analysis.loops.made_modules import is_made_by
from mmrewrite.codemod.site import Site
from mmrewrite.source.names import Scope

_LIFTED = frozenset(("flax.linen.scan", "flax.linen.transforms.scan"))
# Rematerialisation computes the same values a second time; the scan stays what it is.
_TRANSPARENT = frozenset(("flax.linen.remat",))


def is_lifted_scan(site: Site, node: ast.expr) -> bool:
    """Whether an expression is a module made by `nn.scan(Block, ...)(...)`, directly or by name."""
    return is_made_by(site, node, lambda made, scope: _makes_scan(site, made, scope))


def is_nnx_scan(site: Site, node: ast.expr, scope: Scope | None = None) -> bool:
    """Whether an expression is a function that `nnx.scan` made: by a decorator, by a call, or by the name of either."""
    scope = scope or site.scope
    if isinstance(node, ast.Call):
        is_partial = site.resolve(node.func, scope) == "functools.partial" and bool(node.args)
        return is_nnx_scan(site, node.args[0] if is_partial else node.func, scope)
    if site.resolve(node, scope) == "flax.nnx.scan":
        return True
    if not isinstance(node, ast.Name):
        return False
    binding = site.facts.names.binding(node.id, scope)
    owner = scope.owner(node.id) or scope
    if binding is None:
        return False
    if isinstance(binding.node, ast.FunctionDef):
        return any(is_nnx_scan(site, decorator, owner) for decorator in binding.node.decorator_list)
    return isinstance(binding.value, ast.Call) and is_nnx_scan(site, binding.value, owner)


def lifts_function(site: Site, call: ast.Call) -> bool:
    """Whether a call is `nn.scan` of a function rather than of a class of modules."""
    function = call.args[0] if call.args and site.resolve(call.func) in _LIFTED else None
    if isinstance(function, ast.Name):
        binding = site.facts.names.binding(function.id, site.scope)
        return binding is not None and (
            isinstance(binding.node, ast.FunctionDef) or isinstance(binding.value, ast.Lambda)
        )
    return isinstance(function, ast.Lambda)


def _makes_scan(site: Site, node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is the class that `nn.scan(Block, ...)` returns, or a class that it decorates."""
    if isinstance(node, ast.Call):
        if site.resolve(node.func, scope) in _TRANSPARENT and node.args:
            return _makes_scan(site, node.args[0], scope)
        return _is_scan(site, node.func, scope)
    if isinstance(node, ast.Name):
        binding = site.facts.names.binding(node.id, scope)
        owner = scope.owner(node.id) or scope
        if binding is None:
            return False
        if isinstance(binding.node, ast.ClassDef):
            return any(_is_scan(site, decorator, owner) for decorator in binding.node.decorator_list)
        return binding.value is not None and _makes_scan(site, binding.value, owner)
    return False


def _is_scan(site: Site, node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is `nn.scan`, or `functools.partial` of it."""
    if isinstance(node, ast.Call):
        is_partial = site.resolve(node.func, scope) == "functools.partial" and bool(node.args)
        return is_partial and _is_scan(site, node.args[0], scope)
    return site.resolve(node, scope) in _LIFTED
