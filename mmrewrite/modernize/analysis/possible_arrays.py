"""What may be an array of JAX that came from elsewhere: parameters, and what is taken out of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from mmrewrite.modernize.analysis.called_back import COMPUTED_FIELDS, TOLD
from mmrewrite.modernize.analysis.libraries import ARRAY_LIBRARIES, is_known, library_name
from mmrewrite.modernize.analysis.reach import WideReach
from mmrewrite.modernize.uses import ModuleUses
from mmrewrite.source.names import Binding, Scope

_MAKERS = ("jax.numpy.", "jax.random.", "jax.lax.", "jax.nn.")
# Methods that dictionaries have as well, and that give what was put in.
_TAKE_OUT = frozenset(("get", "pop", "setdefault"))
_OWN = ("self", "cls")
# Annotations of what is an array, not what may have one in it.
_ARRAYS = frozenset(("jax.Array", "jax.numpy.ndarray", "chex.Array", "chex.ArrayDevice"))
_ANYTHING = frozenset(("builtins.object", "typing.Any", "typing_extensions.Any"))
# Values lead to each other in circles.
_DEEPEST = 8


class PossibleArrays:
    """Says of operands whether they may be arrays.

    Args:
        modules: The modules that may change, by their facts.
        reach: Tells the statements by which the project gives attributes their values, and its classes.
    """

    def __init__(self, modules: Mapping[int, ModuleUses], reach: WideReach) -> None:
        self._modules, self._members, self._project = modules, reach.members, reach.project

    def computes(self, module: ModuleUses, node: ast.expr | ast.stmt) -> bool:
        """Whether an operator, an index, a field such as `x.T` or a loop over it may compute with an array."""
        match node:
            case ast.Name(ctx=ast.Load()):
                return _is_iterated(module, node) and self._is_array(module, node)
            case ast.BinOp(left=left, right=right):
                operands = [left, right]
            case ast.AugAssign(target=target, value=value):
                operands = [target, value]
            case ast.Compare(left=left, ops=ops, comparators=others):
                if all(isinstance(each, ast.Is | ast.IsNot) for each in ops):
                    return False
                operands = [left, *others]
            case ast.UnaryOp(op=op, operand=operand) if not isinstance(op, ast.Not):
                operands = [operand]
            case ast.Subscript(value=value, slice=index, ctx=ast.Load()):
                return not _is_text(index) and not self._is_table(module, value) and self.may_be(module, value)
            case ast.Attribute(value=value, attr=attribute) if attribute in COMPUTED_FIELDS:
                return self.may_be(module, value)
            case _:
                return False
        # Arrays and texts have no operation in common.
        return not any(map(_is_text, operands)) and any(self.may_be(module, each) for each in operands)

    def may_be(self, module: ModuleUses, node: ast.expr, depth: int = 0) -> bool:
        """Whether a value may be an array that came from elsewhere, or is one that a function of JAX made."""
        if depth > _DEEPEST:
            return True
        match node:
            case ast.Name():
                owner = module.scope_of(node).owner(node.id)
                found = owner.bindings[node.id] if owner is not None else []
                return any(self._may_bind(module, owner, each, depth) for each in found)
            case ast.Attribute(attr=attribute) if attribute in TOLD:
                return False
            case ast.Attribute(value=ast.Name(id=own)) if own in _OWN:
                return self._may_keep(module, node, depth)
            case ast.Subscript(value=table) if self._is_table(module, table):
                return True
            case ast.Attribute(value=ast.Name() as holder, attr=attribute) if self._declares(module, holder, attribute):
                return True
            case ast.Attribute(value=value) | ast.Subscript(value=value) | ast.Starred(value=value):
                return self._may_hold(module, value, depth)
            case ast.Call(func=function, args=[value, _, *_]) if library_name(module, function) == "builtins.getattr":
                return self._may_hold(module, value, depth)
            case ast.NamedExpr(value=value):
                return self.may_be(module, value, depth + 1)
            case ast.IfExp(body=body, orelse=orelse):
                return any(self.may_be(module, each, depth + 1) for each in (body, orelse))
            case ast.BoolOp(values=values):
                return any(self.may_be(module, each, depth + 1) for each in values)
            case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in _TAKE_OUT:
                return self._may_hold(module, value, depth)
            case _:
                return False

    def _may_hold(self, module: ModuleUses, node: ast.expr, depth: int) -> bool:
        """Whether an array may be taken out of a value: what a function of JAX made was looked at where it was made."""
        return not self._is_made(module, node) and self.may_be(module, node, depth + 1)

    def _is_made(self, module: ModuleUses, node: ast.expr) -> bool:
        return isinstance(node, ast.Call) and (library_name(module, node.func) or "").startswith(_MAKERS)

    def _may_bind(self, module: ModuleUses, owner: Scope | None, binding: Binding, depth: int) -> bool:
        if isinstance(binding.node, ast.arg):
            return _may_be_given(module, owner, binding.node)
        value = binding.value
        if isinstance(value, ast.Call) and self._is_made(module, value):
            return True
        return any(
            self.may_be(module, each, depth + 1) for each in ([value] if value else _taken_apart(owner, binding))
        )

    def _is_array(self, module: ModuleUses, name: ast.Name) -> bool:
        """Whether a name is an array for certain in one of its meanings: other values are iterated over as often."""
        owner = module.scope_of(name).owner(name.id)
        if owner is None:
            return False
        return any(
            not _is_collecting(owner, binding.node) and _is_of_arrays(module, binding.node.annotation)
            if isinstance(binding.node, ast.arg)
            else isinstance(binding.value, ast.Call)
            and (library_name(module, binding.value.func) or "").startswith("jax.random.")
            for binding in owner.bindings[name.id]
        )

    def _declares(self, module: ModuleUses, holder: ast.Name, attribute: str) -> bool:
        """Whether a parameter is annotated with a class of the project that declares an attribute as an array."""
        owner = module.scope_of(holder).owner(holder.id)
        for binding in owner.bindings[holder.id] if owner is not None else ():
            annotation = binding.node.annotation if isinstance(binding.node, ast.arg) else None
            if annotation is not None and self._class_declares(module, annotation, attribute):
                return True
        return False

    def _class_declares(self, module: ModuleUses, annotation: ast.expr, attribute: str) -> bool:
        found = module.facts.names.resolve(_parsed(annotation) or annotation, module.scope_of(annotation))
        definition = self._project.definition(found, module.facts) if found is not None else None
        home = self._modules.get(id(definition[0])) if definition is not None else None
        if definition is None or home is None or not isinstance(definition[1].node, ast.ClassDef):
            return False
        statements = (each.statement for each in home.facts.names.inner[definition[1].node].bindings.get(attribute, ()))
        return any(isinstance(each, ast.AnnAssign) and _says_array(home, each.annotation) for each in statements)

    def _is_table(self, module: ModuleUses, name: ast.expr) -> bool:
        """Whether this is `args` of `*args` or `**kwargs`, which is no array, while what is in it may be."""
        if not isinstance(name, ast.Name):
            return False
        owner = module.scope_of(name).owner(name.id)
        return owner is not None and any(_is_collecting(owner, each.node) for each in owner.bindings[name.id])

    def _may_keep(self, module: ModuleUses, field: ast.Attribute, depth: int) -> bool:
        """Whether an attribute of `self` may be an array, by all values that the project gives its name."""
        kept = self._members.get(field.attr)
        if kept is None:
            return not _is_constant(module, field)
        for reached in kept:
            home, statement = self._modules.get(id(reached.facts)), reached.node
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if home is None or not isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
                return True
            if statement.value is not None and self._may_be_stored(home, statement.value, depth):
                return True
        return False

    def _may_be_stored(self, module: ModuleUses, value: ast.expr, depth: int) -> bool:
        """The same for a value whose calls ran elsewhere."""
        if isinstance(value, ast.Tuple | ast.List):
            return any(self._may_be_stored(module, each, depth) for each in value.elts)
        if isinstance(value, ast.BinOp):
            return any(self._may_be_stored(module, each, depth) for each in (value.left, value.right))
        if isinstance(value, ast.UnaryOp):
            return self._may_be_stored(module, value.operand, depth)
        if isinstance(value, ast.Call):
            found = library_name(module, value.func)
            return found is None or not is_known(found) or found.partition(".")[0] in ARRAY_LIBRARIES
        return self.may_be(module, value, depth + 1)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _is_constant(module: ModuleUses, field: ast.Attribute) -> bool:
    """Whether the class around `self.field` gives it a constant."""
    owner = next((holder for holder in module.above(field) if isinstance(holder, ast.ClassDef)), None)
    found = module.facts.names.inner[owner].bindings.get(field.attr, ()) if owner is not None else ()
    return bool(found) and all(
        isinstance(each.value, ast.Constant)
        and each.value.value is not None
        # What a class annotates may be given to what makes an object of it.
        and (not isinstance(each.statement, ast.AnnAssign) or not _says_array(module, each.statement.annotation))
        for each in found
    )


def _is_collecting(owner: Scope, node: ast.AST) -> bool:
    arguments = getattr(owner.node, "args", None)
    return isinstance(arguments, ast.arguments) and node in (arguments.vararg, arguments.kwarg)


def _may_be_given(module: ModuleUses, owner: Scope | None, parameter: ast.arg) -> bool:
    """Whether a parameter may be an array: without an annotation, or with one that says so or anything."""
    if parameter.arg in _OWN or (owner is not None and _is_collecting(owner, parameter)):
        return False
    return parameter.annotation is None or _says_array(module, parameter.annotation)


def _says_array(module: ModuleUses, annotation: ast.expr) -> bool:
    """Whether an annotation has a type of a library for arrays in it, or one that says nothing."""
    # A name in a text stands in no scope of its own.
    scope = module.scope_of(annotation)
    parsed = _parsed(annotation)
    if parsed is None:
        return True
    for node in ast.walk(parsed):
        if isinstance(node, ast.Name | ast.Attribute):
            found = module.facts.names.resolve(node, scope)
            if found in _ANYTHING or (found or "").partition(".")[0] in (*ARRAY_LIBRARIES, "jaxtyping"):
                return True
    return False


def _parsed(annotation: ast.expr) -> ast.expr | None:
    """An annotation, also one that is a text; None for a text that is no expression."""
    if not (isinstance(annotation, ast.Constant) and isinstance(annotation.value, str)):
        return annotation
    try:
        return ast.parse(annotation.value, mode="eval").body
    except SyntaxError:
        return None


def _is_of_arrays(module: ModuleUses, annotation: ast.expr | None) -> bool:
    """Whether an annotation says that a value is an array, and not only that there may be one in it."""
    parsed = _parsed(annotation) if annotation is not None else None
    found = module.facts.names.resolve(parsed, module.scope_of(annotation)) if annotation is not None and parsed else ""
    return found in _ARRAYS


def _is_iterated(module: ModuleUses, name: ast.Name) -> bool:
    """Whether a name is iterated over: by a loop, by a star, or by several targets."""
    match module.parents.get(name):
        case ast.For(iter=value) | ast.comprehension(iter=value) | ast.Starred(value=value):
            return value is name
        case ast.Assign(targets=targets, value=value) if value is name:
            return any(isinstance(each, ast.Tuple | ast.List) for each in targets)
        case _:
            return False


def _taken_apart(owner: Scope | None, binding: Binding) -> Iterator[ast.expr]:
    """What a name gets a part of: by a loop, or as one of several targets."""
    statement = binding.statement
    if isinstance(statement, ast.For | ast.AsyncFor):
        yield statement.iter
    elif isinstance(statement, ast.Assign):
        yield statement.value
    for generator in getattr(owner.node, "generators", ()) if owner is not None else ():
        if any(isinstance(part, ast.Name) and part.id == binding.name for part in ast.walk(generator.target)):
            yield generator.iter
