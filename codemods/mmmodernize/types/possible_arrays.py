"""What may be an array of JAX that came from elsewhere, and what computes with it.

It may unless the source shows what else it is: an unknown value may be an array.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from itertools import pairwise

from mmmodernize.names.shared_names import PJIT
from mmmodernize.types.array_annotations import ArrayAnnotations
from mmmodernize.types.array_functions import (
    COMPUTE,
    COMPUTED_FIELDS,
    COPY,
    GIVE_LEAVES,
    GIVE_NO_ARRAY,
    GIVE_NOTHING,
    GO_THROUGH,
    HAND_ON,
    MODULES_GO_THROUGH,
    OF_NUMPY,
    OF_TEXTS,
    TO_THE_HOST,
    TOLD,
    TRANSFORMS,
)
from mmmodernize.types.libraries import ARRAY_LIBRARIES, is_known, library_name
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.annotations import annotations_of, class_of_annotation
from mmrewrite.values.arguments import given
from mmrewrite.values.callees import given_functions
from mmrewrite.values.containers import parts_of
from mmrewrite.values.flow import MOST_VALUES, ValueFlow
from mmrewrite.values.functions import results_of
from mmrewrite.values.value import (
    ANY_ITEM,
    ELEMENT,
    Access,
    By,
    CallArguments,
    CallFrame,
    Decorated,
    Display,
    Function,
    Own,
    Path,
    Value,
    attribute,
)

_SEVERAL = (ast.Tuple, ast.List)
_ASK_WHICH = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
_OWN = ("self", "cls")
_ITEMS = ((attribute("items"),), (attribute("values"),))
# A value, and whether the question is if it is an array itself, rather than if it has one in it.
_Asked = tuple[Value, bool]


class PossibleArrays:
    """Says of values and operands whether they may be arrays."""

    def __init__(self, flow: ValueFlow) -> None:
        self._flow, self._annotations = flow, ArrayAnnotations(flow.project, flow.uses_of)
        self._known: dict[_Asked, bool] = {}

    def computes(self, module: ModuleUses, node: ast.AST, frame: CallFrame | None = None) -> bool:
        """Whether an operator, an index, a field such as `x.T` or a loop over it may compute with an array."""

        def may_be(part: ast.expr) -> bool:
            return self.may_be(Value(module, part, (), frame))

        def may_have(part: ast.expr) -> bool:
            return self.may_have(Value(module, part, (), frame))

        if isinstance(node, ast.expr) and _is_iterated(module, node) and may_be(node):
            return True
        if isinstance(node, ast.expr) and _is_taken_apart(module, node) and may_have(node):
            return True
        match node:
            case ast.BinOp(left=left, right=right):
                operands = [left, right]
            case ast.AugAssign(target=target, value=value):
                operands = [target, value]
            case ast.Compare(left=left, ops=ops, comparators=others):
                if all(isinstance(each, ast.Is | ast.IsNot) for each in ops):
                    return False
                operands = [left, *others]
                # What is in a container is compared with what is looked for.
                searched = [each for op, each in zip(ops, others, strict=True) if isinstance(op, ast.In | ast.NotIn)]
                if not _is_text(left) and any(map(may_have, searched)):
                    return True
            case ast.UnaryOp(op=op, operand=operand) if not isinstance(op, ast.Not):
                operands = [operand]
            case ast.Subscript(value=value, slice=index, ctx=ast.Load()):
                return not _is_text(index) and may_be(value)
            case ast.Attribute(value=value, attr=attribute) if attribute in COMPUTED_FIELDS:
                return may_be(value)
            case ast.Call(func=ast.Attribute(value=value, attr="copy"), args=[], keywords=[]):
                return may_be(value)
            case ast.Match(subject=value, cases=cases):
                has_values = any(isinstance(part, ast.MatchValue) for each in cases for part in ast.walk(each.pattern))
                return has_values and may_be(value)
            case _:
                return False
        # Arrays and texts have no operation in common.
        return not any(map(_is_text, operands)) and any(map(may_be, operands))

    def call_computes(self, function: str, call: CallArguments) -> bool:
        """Whether a function of Python or NumPy may compute with an array among its arguments."""
        if function in COMPUTE or function in COPY or function.startswith("einops."):
            return any(map(self.may_have, given(call)))
        goes_through = function in GO_THROUGH or function in OF_NUMPY or function.startswith(MODULES_GO_THROUGH)
        return goes_through and any(map(self.may_be, given(call)))

    def may_be(self, value: Value) -> bool:
        """Whether a value may be an array that came from elsewhere, or is one that a function of JAX made."""
        return self._is_found((value, True))

    def may_have(self, value: Value) -> bool:
        """Whether a value may be one, or have one in it."""
        return self._is_found((value, False))

    def _is_found(self, asked: _Asked) -> bool:
        found = self._known.get(asked)
        if found is None:
            found = self._known[asked] = self._search(asked)
        return found

    def _search(self, asked: _Asked) -> bool:
        queue, seen = [asked], {asked}
        for value, itself in queue:
            found = self._leads_to(value, itself)
            if found is True or len(queue) > MOST_VALUES:
                return True
            for each in found or ():
                if each not in seen:
                    seen.add(each)
                    queue.append(each)
        return False

    def _leads_to(self, value: Value, itself: bool) -> bool | Sequence[_Asked]:
        """Whether a value may be an array, or what may be one if it is."""
        head, path, frame = value.head, value.path, value.frame
        if self._is_told(path) or (itself and path[-2:-1] in _ITEMS and path[-1].kind is By.CALL):
            return False
        declared = self._declared(value, itself)
        if declared is not None:
            return declared
        match head:
            case str():
                return self._of_library(value, itself)
            case ast.arg():
                is_entered = frame is not None and frame.function is value.module.parents[value.module.parents[head]]
                if not is_entered and head.arg in _OWN and not path:
                    return not itself
                if not is_entered and head.arg not in _OWN:
                    return not itself or bool(path) or not _is_table(value.module, head)
            case ast.ClassDef() | Own() if [step.kind for step in path] in ([], [By.CALL]):
                return not itself and (bool(path) or not isinstance(head, ast.ClassDef))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() | Decorated() if not path:
                return False
            case ast.Constant() | ast.JoinedStr() | ast.Slice():
                return False
            case ast.Tuple() | ast.List() | ast.Set() | ast.Dict() | Display() if not path:
                return [] if itself else [(part, False) for part in parts_of(value)]
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp() if not path:
                return [] if itself else [(part, False) for part in parts_of(value)]
            case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.AugAssign():
                return [(value._replace(head=part, path=()), itself and not path) for part in _operands(head)]
            case ast.ExceptHandler():
                return self._of_exception(value.module, head.type, itself and not path)
            case _:
                pass
        return self._behind(value, itself)

    def _behind(self, value: Value, itself: bool) -> bool | Sequence[_Asked]:
        found: list[_Asked] = []
        behind = self._flow.behind(value)
        if not itself and not value.path and isinstance(value.head, ast.Name | ast.Attribute):
            # What is put into a container later.
            behind = [*behind, *self._flow.behind(value.done(ANY_ITEM))]
        elif not itself and isinstance(value.head, Function) and results_of(value.head).is_generator:
            behind = [*behind, *self._flow.behind(value.done(ELEMENT))]
        for each in behind:
            if isinstance(each, Value):
                found.append((each, itself))
            elif each.value is None or not isinstance(each.value.head, ast.ExceptHandler):
                return True
            else:
                found.append((each.value, itself))
        return found

    def _is_told(self, path: Path) -> bool:
        """Whether something is taken that arrays tell of themselves, or that texts and arrays on the host have."""
        for place, step in enumerate(path):
            if step.kind is By.ATTRIBUTE:
                is_called = [each.kind for each in path[place + 1 : place + 2]] == [By.CALL]
                is_method = is_called and (step.what in TO_THE_HOST or step.what in OF_TEXTS)
                if step.what in TOLD or (is_method and not self._flow.stores.in_classes(step.what)):
                    return True
        return False

    def _declared(self, value: Value, itself: bool) -> bool | Sequence[_Asked] | None:
        """What annotations say of a value, None if they say nothing."""
        for module, annotation, path in annotations_of(self._flow, value):
            of_class = class_of_annotation(self._flow, module, annotation)
            if of_class is not None and path and path[0].kind is By.ATTRIBUTE:
                return [(Value(of_class[0], Own(of_class[1], is_class=False), path), itself)]
            is_table = isinstance(value.head, ast.arg) and _is_table(value.module, value.head)
            if is_table and itself and not value.path:
                return False
            if not self._annotations.allow(module, annotation, itself=itself and not path and not is_table):
                return False
            if not isinstance(value.head, ast.Name | Function):
                return True
        return None

    def _of_exception(self, module: ModuleUses, kinds: ast.expr | None, itself: bool) -> bool:
        """Whether an exception may hold an array: one of the project's own classes may hold anything."""
        names = [
            library_name(module, each) for each in (kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]) if each
        ]
        return not itself and not all(name is not None and is_known(name) for name in names)

    def _of_library(self, value: Value, itself: bool) -> bool | Sequence[_Asked]:
        """What a library gives."""
        name, path = f"{value.head}", value.path
        root = name.partition(".")[0]
        if self._flow.behind(value):
            return self._behind(value, itself)
        kinds = [step.kind for step in path]
        if name in TRANSFORMS:
            return (By.CALL, By.CALL) in pairwise(kinds) and not is_compiled_for_mesh(value)
        if By.CALL not in kinds:
            return not is_known(name)
        if name in GIVE_NOTHING or name.startswith(GIVE_NO_ARRAY) or (name in GO_THROUGH and itself and len(path) == 1):
            return False
        if root in ARRAY_LIBRARIES:
            if not name.startswith(GIVE_LEAVES):
                return True
        elif root not in HAND_ON and name not in OF_NUMPY:
            return not is_known(name)
        return [*self._handed_on(path, itself=itself and name in OF_NUMPY and len(path) == 1)]

    def _handed_on(self, path: Path, *, itself: bool) -> Iterable[_Asked]:
        """The arguments of calls, and the results of functions that return their arguments."""
        for step in path:
            if isinstance(step.what, CallArguments):
                yield from ((each, itself) for each in given(step.what))
                for each in given_functions(step.what):
                    if isinstance(each.head, ast.Name | ast.Attribute | ast.Lambda):
                        yield each.done(Access(By.CALL, self._flow.no_arguments)), False


def is_compiled_for_mesh(value: Value) -> bool:
    """Whether something is of a function that is compiled with specs, and so lies on the mesh."""
    if value.head in PJIT:
        return True
    is_jit = value.head == "jax.jit" and value.path and isinstance(value.path[0].what, CallArguments)
    return bool(is_jit) and any(word in ("in_shardings", "out_shardings") for word, _ in value.path[0].what.keywords)


def _is_table(module: ModuleUses, parameter: ast.arg) -> bool:
    """Whether a parameter is `*args` or `**kwargs`."""
    arguments = module.parents[parameter]
    return isinstance(arguments, ast.arguments) and parameter in (arguments.vararg, arguments.kwarg)


def _operands(node: ast.BinOp | ast.UnaryOp | ast.Compare | ast.AugAssign) -> Sequence[ast.expr]:
    """What an operator computes its result of, none if that is a truth value in any case."""
    match node:
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.UnaryOp(op=op, operand=operand):
            return [] if isinstance(op, ast.Not) else [operand]
        case ast.Compare(left=left, ops=ops, comparators=others):
            return [] if all(isinstance(each, _ASK_WHICH) for each in ops) else [left, *others]
        case ast.AugAssign(value=operand):
            return [operand]


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _is_iterated(module: ModuleUses, node: ast.expr) -> bool:
    """Whether a value is iterated over: by a loop, by a star, or by several targets."""
    holder = module.parents.get(node)
    match holder:
        case ast.For(iter=value) | ast.comprehension(iter=value):
            return value is node
        case ast.Starred(ctx=ast.Load()):
            return True
        case ast.Assign(targets=targets) if holder.value is node:
            return any(isinstance(each, _SEVERAL) for each in targets)
        case ast.Tuple(elts=values) | ast.List(elts=values):
            # `(a, b), c = x, y`
            statement = module.parents.get(holder)
            if not isinstance(statement, ast.Assign) or statement.value is not holder:
                return False
            return any(
                isinstance(part, _SEVERAL)
                for each in statement.targets
                if isinstance(each, _SEVERAL)
                for part in (each.elts if len(each.elts) != len(values) else [each.elts[values.index(node)]])
            )
        case _:
            return False


def _is_taken_apart(module: ModuleUses, node: ast.expr) -> bool:
    """Whether what is in a value is iterated over, as in `for a, b in values`, where it may be no tuple."""
    match module.parents.get(node):
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value) if value is node:
            pass
        case _:
            return False
    if not isinstance(target, _SEVERAL):
        return False
    if isinstance(node, ast.Call):
        found = library_name(module, node.func) or ""
        gives_tuples = found in ("builtins.enumerate", "builtins.zip", "builtins.sorted", "builtins.list")
        is_of_items = isinstance(node.func, ast.Attribute) and node.func.attr == "items"
        return not gives_tuples and not is_of_items and not found.startswith("itertools.")
    return not (isinstance(node, ast.Tuple | ast.List) and all(isinstance(each, ast.Tuple) for each in node.elts))
