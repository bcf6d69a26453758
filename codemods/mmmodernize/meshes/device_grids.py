"""Shardings by position whose every use is seen: which text with a mesh of these devices is the same.

The grid of a `PositionalSharding` is a mesh with one axis for each dimension, as long as the grid is only made and
reshaped; what `replicate` and `transpose` do to it is said by a spec of that mesh. So a value is followed from the call
that makes it through methods and names to the functions that take it. Where one use is out of view, or where the rank
of an array would matter and is not seen, the class of the runtime takes its place.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from mmmodernize.names.old_names import PARTIALS
from mmmodernize.sites.site import ModernizeContext, OldNameSite
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Binding, Scope

POSITIONAL_SHARDINGS = (
    "jax.sharding.PositionalSharding",
    "jax.experimental.sharding.PositionalSharding",
    "jax._src.sharding.PositionalSharding",
    "jax._src.sharding_impls.PositionalSharding",
)
MESHES = frozenset(("jax.sharding.Mesh", "jax.make_mesh", "jax.interpreters.pxla.Mesh", "jax.experimental.maps.Mesh"))
# Functions that take any sharding: where, and whether the argument before that is the one array that it is for.
_SINKS = {
    "jax.device_put": ((1,), ("device",), True),
    "jax.lax.with_sharding_constraint": ((1,), ("shardings",), True),
    "jax.experimental.pjit.with_sharding_constraint": ((1,), ("shardings", "axis_resources"), True),
    "jax.jit": ((), ("in_shardings", "out_shardings"), False),
    "jax.make_array_from_callback": ((1,), ("sharding",), False),
    "jax.make_array_from_single_device_arrays": ((1,), ("sharding",), False),
    "jax.make_array_from_process_local_data": ((0,), ("sharding",), False),
    "jax.ShapeDtypeStruct": ((), ("sharding",), False),
    "builtins.print": ((0,), (), False),
}
_METHODS = frozenset(("reshape", "replicate", "transpose", "T"))
# What `PositionalSharding` has and `NamedSharding` has not.
_OWN_MEMBERS = _METHODS | {"shape", "ndim", "ids", "_ids", "_devices", "_remake"}
_SHARED_MEMBERS = frozenset(
    ("device_set", "addressable_devices", "is_fully_replicated", "is_fully_addressable", "shard_shape", "num_devices")
)
_SHAPED = frozenset(("ones", "zeros", "full", "empty"))
_AXES = "xyzw"
_DEEPEST = 8


class _UnseenUse(Exception):
    """A use that no text with a mesh is known to keep, with the reason in words for a message."""


@dataclass(frozen=True)
class _Grid:
    """How a sharding lays arrays out.

    Attributes:
        sizes: The sizes of the axes of its mesh, each None if unknown; None if even their number is.
        entries: For each dimension the axis that cuts it, None where none does; None for each axis in order.
        is_replicated: Whether nothing is cut.
    """

    sizes: tuple[int | None, ...] | None
    entries: tuple[int | None, ...] | None = None
    is_replicated: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether it is made and reshaped only, so that the grid is the mesh."""
        return self.entries is None and not self.is_replicated

    @property
    def dimensions(self) -> tuple[int | None, ...]:
        """`entries`, written out."""
        if self.sizes is None:
            raise _UnseenUse("the shape of its devices is not seen")
        if self.entries is not None:
            return self.entries
        return (None,) * len(self.sizes) if self.is_replicated else tuple(range(len(self.sizes)))

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The number of parts of each dimension, each None if unknown."""
        assert self.sizes is not None
        return tuple(1 if axis is None else self.sizes[axis] for axis in self.dimensions)

    @property
    def least_rank(self) -> int:
        """The rank that arrays must be seen to have: a grid whose first axis cuts nothing took smaller ones, too."""
        if self.is_replicated:
            return 0
        first = self.shape[0] if self.dimensions else 1
        return len(self.dimensions) if first is None or first == 1 else 0

    def after(self, method: str, call: ast.Call | None) -> _Grid:
        """The grid that a method gives."""
        arguments = [] if call is None else call.args
        keywords = {} if call is None else {keyword.arg: keyword.value for keyword in call.keywords}
        if method == "reshape":
            shape = _shape_of(arguments, keywords)
            if self.is_replicated:
                return _Grid((), (None,) * len(shape), is_replicated=True)
            if not self.is_whole:
                raise _UnseenUse("it is reshaped after `replicate` or `transpose`")
            return _Grid(shape)
        if method == "replicate":
            return self._replicated(arguments, keywords)
        if keywords:
            raise _UnseenUse("`transpose` has keywords")
        order = _literals(arguments)
        dimensions = self.dimensions
        if order and sorted(order) != list(range(len(dimensions))):
            raise _UnseenUse("the axes of `transpose` are not seen")
        return replace(self, entries=tuple(dimensions[index] for index in order or range(len(dimensions))[::-1]))

    def _replicated(self, arguments: Sequence[ast.expr], keywords: dict[str | None, ast.expr]) -> _Grid:
        given = dict(zip(("axis", "keepdims"), arguments, strict=False)) | keywords
        if len(arguments) > 2 or not set(given) <= {"axis", "keepdims"}:
            raise _UnseenUse("the arguments of `replicate` are not seen")
        axis, keepdims = given.get("axis"), given.get("keepdims")
        if keepdims is not None and not (isinstance(keepdims, ast.Constant) and isinstance(keepdims.value, bool)):
            raise _UnseenUse("`keepdims` is not seen")
        if axis is None or (isinstance(axis, ast.Constant) and axis.value is None):
            return replace(self, is_replicated=True)
        united, dimensions = _literals([axis]), self.dimensions
        if any(not 0 <= index < len(dimensions) for index in united):
            raise _UnseenUse("the axis of `replicate` is not seen")
        keeps = keepdims is None or bool(keepdims.value)
        entries = tuple(
            None if index in united else entry for index, entry in enumerate(dimensions) if keeps or index not in united
        )
        return replace(self, entries=entries, is_replicated=all(entry is None for entry in entries))


@dataclass(frozen=True)
class Replacement:
    """A node, and the text in its place, which a site spells."""

    node: ast.expr
    text: Callable[[OldNameSite], str]


@dataclass(eq=False)
class _MadeGrid:
    """What becomes of the value of one call, as far as it was followed."""

    call: ast.Call
    edits: list[Replacement] = field(default_factory=list)
    shared: list[Replacement] = field(default_factory=list)
    seen: set[ast.AST] = field(default_factory=set)
    reason: str | None = None


class DeviceGrids:
    """Decides about every `PositionalSharding(...)` of a project."""

    def __init__(self, context: ModernizeContext) -> None:
        self._context = context
        self._modules: dict[ModuleUses, dict[ast.Call, _MadeGrid]] = {}

    def plan(self, module: ModuleUses, call: ast.Call) -> Sequence[Replacement] | str:
        """The edits for one call that makes a sharding and for its uses, or why there are none, for a message."""
        if module not in self._modules:
            self._modules[module] = self._flows(module)
        flow = self._modules[module][call]
        return flow.edits if flow.reason is None else flow.reason

    def _flows(self, module: ModuleUses) -> dict[ast.Call, _MadeGrid]:
        found: dict[ast.Call, _MadeGrid] = {}
        for use in module.uses(POSITIONAL_SHARDINGS):
            call = module.parents.get(use.node)
            if isinstance(call, ast.Call) and call.func is use.node:
                flow = found[call] = _MadeGrid(call)
                try:
                    if self._why_everywhere is not None:
                        raise _UnseenUse(self._why_everywhere)
                    _GridFollower(self._context, module, flow).follow_call()
                except _UnseenUse as unseen:
                    flow.reason = f"{unseen}; write a `NamedSharding` of a mesh of these devices"
        taken: set[ast.AST] = set()
        for flow in found.values():
            if flow.reason is None:
                flow.edits += [edit for edit in flow.shared if edit.node not in taken]
                taken |= {edit.node for edit in flow.shared}
        return found

    @cached_property
    def _why_everywhere(self) -> str | None:
        """Why code of the project may tell the class of a sharding, in words for a message, else None."""
        for module in self._context.modules.values():
            for use in module.uses(POSITIONAL_SHARDINGS):
                holder = module.parents.get(use.node)
                is_made = isinstance(holder, ast.Call) and holder.func is use.node
                if not is_made and not module.in_annotation(use.node):
                    return f"{module.facts.path}:{use.node.lineno} uses the class itself"
            for node in module.nodes_of(ast.Attribute):
                if node.attr == "sharding" and isinstance(node.ctx, ast.Load) and not _is_plainly_used(module, node):
                    return f"{module.facts.path}:{node.lineno} may read members of the sharding of an array"
        return None


def _is_plainly_used(module: ModuleUses, node: ast.Attribute) -> bool:
    """Whether `x.sharding` is used as any sharding can be."""
    holder = module.parents[node]
    if isinstance(holder, ast.Attribute):
        return holder.attr not in _OWN_MEMBERS
    if isinstance(holder, ast.keyword):
        holder = module.parents[holder]
    if isinstance(holder, ast.Call):
        name = module.facts.names.resolve(holder.func, module.scope_of(holder)) or ""
        return name in _SINKS or name == "builtins.str"
    return isinstance(holder, ast.Expr | ast.FormattedValue)


class _GridFollower:
    """Follows the value of one call."""

    def __init__(self, context: ModernizeContext, module: ModuleUses, flow: _MadeGrid) -> None:
        self._context, self._module, self._flow = context, module, flow
        self._names = module.facts.names

    def follow_call(self) -> None:
        """Follow the value from the call on."""
        call = self._flow.call
        if len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
            raise _UnseenUse("its arguments are not only devices")
        self._follow(call, _Grid(_device_shape(self._module, call.args[0])), is_shared=False)

    def _follow(self, start: ast.expr, grid: _Grid, *, is_shared: bool) -> None:
        """Follow a value through methods to its consumer."""
        module, node, first = self._module, start, grid
        reshape: ast.Call | None = None
        steps = 0
        while True:
            holder = module.parents[node]
            if not isinstance(holder, ast.Attribute):
                break
            if holder.attr == "shape" and not is_shared and start is not self._flow.call and reshape is None:
                self._flow.edits.append(_shown_shape(holder, grid))
                return
            if holder.attr in _SHARED_MEMBERS:
                break
            method = module.parents[holder] if holder.attr != "T" else holder
            if holder.attr not in _METHODS or (holder.attr != "T" and not _is_call_of(method, holder)):
                raise _UnseenUse(f"line {holder.lineno} asks for its `{holder.attr}`")
            call = method if isinstance(method, ast.Call) else None
            if is_shared and (steps or not _keeps_class(holder.attr, call)):
                raise _UnseenUse(f"line {holder.lineno} uses a name with several values")
            if holder.attr == "reshape" and not grid.is_replicated:
                reshape = call
            grid = grid.after(holder.attr, call)
            assert isinstance(method, ast.expr)
            node, steps = method, steps + 1
        if steps or start is self._flow.call:
            made = self._text(start, first, grid, reshape)
            (self._flow.shared if is_shared else self._flow.edits).append(Replacement(node, made))
        self._consume(node, grid, is_shared=is_shared)

    def _text(
        self, start: ast.expr, first: _Grid, grid: _Grid, reshape: ast.Call | None
    ) -> Callable[[OldNameSite], str]:
        """The text of a `NamedSharding` with a grid."""
        call = self._flow.call
        devices = call.args[0] if start is call else None
        entries = () if grid.is_replicated else grid.dimensions
        names = [_axis_name(index) for index in range(1 if grid.sizes is None else len(grid.sizes))]
        mesh = self._mesh_of(devices) if devices is not None and grid.is_replicated else None
        module = self._module

        def spell(site: OldNameSite) -> str:
            made = site.spell("jax.sharding.NamedSharding")
            axes = ["None" if entry is None else f'"{_axis_name(entry)}"' for entry in entries]
            spec = f"{site.spell('jax.sharding.PartitionSpec')}({', '.join(axes)})"
            if mesh is not None:
                return f"{made}({site.text(mesh)}, {spec})"
            if devices is None and (reshape is None or grid.is_replicated):
                return f"{made}({site.text(start)}.mesh, {spec})"
            text = site.text(start) + ".mesh.devices" if devices is None else site.text(devices)
            if grid.is_replicated and devices is not None:
                shape = _device_shape(module, devices)
                text = text if shape is not None and len(shape) == 1 else f"{site.spell('numpy.ravel')}({text})"
                shown = '("x",)'
            else:
                if reshape is not None:
                    sizes = ", ".join(site.text(argument) for argument in reshape.args)
                    if devices is None or _is_array(module, devices):
                        text = f"{text}.reshape({sizes})"
                    else:
                        text = f"{site.spell('numpy.reshape')}({text}, {_one_shape(sizes, reshape)})"
                listed = ", ".join(f'"{name}"' for name in names)
                shown = f"({listed}{',' if len(names) == 1 else ''})"
            return f"{made}({site.spell('jax.sharding.Mesh')}({text}, {shown}), {spec})"

        return spell

    def _mesh_of(self, devices: ast.expr | None) -> ast.expr | None:
        """A mesh of just these devices that has a name where they are."""
        module = self._module
        if isinstance(devices, ast.Attribute) and devices.attr == "devices" and isinstance(devices.value, ast.Name):
            binding = self._names.binding(devices.value.id, module.scope_of(devices))
            is_mesh = binding is not None and isinstance(binding.value, ast.Call) and self._makes_mesh(binding.value)
            return devices.value if is_mesh else None
        if not isinstance(devices, ast.Name):
            return None
        scope = module.scope_of(devices)
        owner = scope.owner(devices.id)
        if owner is None or self._names.binding(devices.id, scope) is None or owner is not scope.function:
            return None
        for name, bindings in owner.bindings.items():
            value, statement = bindings[0].value, bindings[0].statement
            if len(bindings) > 1 or not isinstance(value, ast.Call) or not self._makes_mesh(value):
                continue
            is_above = statement in _body_of(owner) and (value.end_lineno or 0) < devices.lineno
            if is_above and value.args and isinstance(value.args[0], ast.Name) and value.args[0].id == devices.id:
                target = statement.targets[0] if isinstance(statement, ast.Assign) else None
                return target if isinstance(target, ast.Name) and target.id == name else None
        return None

    def _makes_mesh(self, call: ast.Call) -> bool:
        return self._names.resolve(call.func, self._module.scope_of(call)) in MESHES

    # Consumers

    def _consume(self, node: ast.expr, grid: _Grid, *, is_shared: bool, is_part: bool = False) -> None:
        """Check what takes a sharding, or follow it on."""
        module = self._module
        holder = module.parents[node]
        if isinstance(holder, ast.Attribute | ast.FormattedValue):
            return
        if isinstance(holder, ast.Expr):
            return
        if isinstance(holder, ast.Tuple | ast.List | ast.Dict):
            self._consume(holder, grid, is_shared=is_shared, is_part=True)
        elif isinstance(holder, ast.keyword):
            call = module.parents[holder]
            if not isinstance(call, ast.Call) or holder.arg is None:
                raise _UnseenUse(f"line {node.lineno} passes it on by `**`")
            self._check_call(call, holder.arg, grid, is_part=is_part)
        elif isinstance(holder, ast.Call) and node in holder.args:
            self._check_call(holder, holder.args.index(node), grid, is_part=is_part)
        elif (
            isinstance(holder, ast.Assign) and [type(target) for target in holder.targets] == [ast.Name] and not is_part
        ):
            if is_shared:
                raise _UnseenUse(f"line {node.lineno} uses a name with several values")
            self._follow_name(holder, grid)
        else:
            raise _UnseenUse(f"what line {node.lineno} does with it is not seen")

    def _follow_name(self, statement: ast.Assign, grid: _Grid) -> None:
        """Follow the value of an assignment to the places that read the name."""
        module, (target,) = self._module, statement.targets
        assert isinstance(target, ast.Name)
        owner = module.scope_of(statement).owner(target.id)
        if owner is None or owner.kind not in ("module", "function") or statement in self._flow.seen:
            raise _UnseenUse(f"where `{target.id}` is read is not seen")
        self._flow.seen.add(statement)
        if any(target.id in scope.outer for scope in module.facts.names.scopes.values()):
            raise _UnseenUse(f"`{target.id}` is assigned in other functions")
        full = f"{module.facts.names.name}.{target.id}"
        if owner.kind == "module" and any(
            other is not module and any(True for _ in other.uses((full,))) for other in self._context.modules.values()
        ):
            raise _UnseenUse(f"another file uses `{target.id}`")
        for head in module.heads.get(target.id, ()):
            if module.scope_of(head).owner(target.id) is not owner:
                continue
            reaching = _reaching(module, owner, head)
            if not any(binding.statement is statement for binding in reaching):
                continue
            if len(reaching) == 1:
                self._follow(head, grid, is_shared=False)
                continue
            if not all(self._is_whole(binding, target.id) for binding in reaching):
                raise _UnseenUse(f"line {head.lineno} uses a name with several values")
            self._follow(head, _Grid(None), is_shared=True)

    def _is_whole(self, binding: Binding, name: str) -> bool:
        """Whether a binding gives a name a grid that is only made and reshaped, from devices or from its own."""
        value = binding.value
        while isinstance(value, ast.Call):
            if isinstance(value.func, ast.Attribute) and value.func.attr == "reshape":
                value = value.func.value
                continue
            made = self._names.resolve(value.func, self._module.scope_of(value))
            return made in POSITIONAL_SHARDINGS and isinstance(binding.statement, ast.Assign)
        return isinstance(value, ast.Name) and value.id == name and value is not binding.value

    def _check_call(self, call: ast.Call, place: int | str, grid: _Grid, *, is_part: bool) -> None:
        """Check a call that takes the sharding at a position, or by a keyword."""
        module = self._module
        if any(isinstance(argument, ast.Starred) for argument in call.args):
            raise _UnseenUse(f"line {call.lineno} has starred arguments")
        function, name = call.func, self._names.resolve(call.func, module.scope_of(call)) or ""
        if name in PARTIALS and call.args:
            function, name = call.args[0], self._names.resolve(call.args[0], module.scope_of(call)) or ""
            place = place - 1 if isinstance(place, int) else place
            if place == -1:
                raise _UnseenUse(f"line {call.lineno} calls it")
        if name in _SINKS:
            positions, keywords, is_for_array = _SINKS[name]
            if place not in positions and place not in keywords:
                raise _UnseenUse(f"`{name}` on line {call.lineno} takes no sharding there")
            self._check_caught(call)
            if grid.sizes is None and not grid.is_replicated:
                raise _UnseenUse(f"the shape of its devices is not seen on line {call.lineno}")
            least = grid.least_rank
            array = call.args[0] if is_for_array and not is_part and call.args and function is call.func else None
            rank = _rank(module, array) if array is not None else None
            if name != "builtins.print" and least and (rank is None or rank < least):
                raise _UnseenUse(f"the rank of the array on line {call.lineno} is not seen")
        elif grid.is_replicated and not is_part:
            self._check_parameter(function, name, place, call)
        else:
            raise _UnseenUse(f"what `{ast.unparse(call.func)}` on line {call.lineno} does with it is not seen")

    def _check_caught(self, call: ast.Call) -> None:
        """Refuse a call whose error for an array of another rank would be caught."""
        for holder in self._module.above(call):
            if isinstance(holder, ast.FunctionDef | ast.Lambda):
                return
            if isinstance(holder, ast.Try) or (
                isinstance(holder, ast.With) and any("aises" in ast.unparse(item.context_expr) for item in holder.items)
            ):
                raise _UnseenUse(f"an error of line {call.lineno} is caught")

    def _check_parameter(self, function: ast.expr, name: str, place: int | str, call: ast.Call, depth: int = 0) -> None:
        """Check that a function of the project only gives a parameter to functions that take any sharding."""
        unseen = _UnseenUse(f"what `{ast.unparse(function)}` on line {call.lineno} does with it is not seen")
        found = self._context.project.definition(name, self._module.facts) if name else None
        module = next((each for each in self._context.modules.values() if found and each.facts is found[0]), None)
        node = found[1].node if found is not None else None
        if module is None or not isinstance(node, ast.FunctionDef) or node.decorator_list or depth > _DEEPEST:
            raise unseen
        names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        parameter = place if isinstance(place, str) else names[place] if place < len(names) else None
        if parameter not in (*names, *(argument.arg for argument in node.args.kwonlyargs)):
            raise unseen
        for head in module.heads.get(parameter, ()):
            owner = module.scope_of(head).owner(parameter)
            if owner is None or owner.node is not node:
                continue
            holder = module.parents[head]
            user = module.parents[holder] if isinstance(holder, ast.keyword) else holder
            if len(owner.bindings[parameter]) != 1 or not isinstance(user, ast.Call):
                raise unseen
            positions, keywords, _ = _SINKS.get(
                module.facts.names.resolve(user.func, module.scope_of(user)) or "", ((), (), False)
            )
            taken = (
                holder.arg if isinstance(holder, ast.keyword) else user.args.index(head) if head in user.args else -1
            )
            if taken not in positions and taken not in keywords:
                raise unseen


# What the source shows of shapes


def _shown_shape(node: ast.expr, grid: _Grid) -> Replacement:
    """The shape of a grid as a tuple of numbers."""
    shape = grid.shape if grid.dimensions else ()
    if not shape or None in shape:
        raise _UnseenUse("its shape is not seen")
    text = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
    return Replacement(node, lambda site: text)


def _axis_name(index: int) -> str:
    return _AXES[index] if index < len(_AXES) else f"axis_{index}"


def _is_call_of(node: ast.AST, function: ast.expr) -> bool:
    return isinstance(node, ast.Call) and node.func is function


def _keeps_class(method: str, call: ast.Call | None) -> bool:
    """Whether the text for a method is the same for the value of the runtime's class."""
    return method == "reshape" or (method == "replicate" and call is not None and not call.args and not call.keywords)


def _literals(nodes: Sequence[ast.expr]) -> tuple[int, ...]:
    """Whole numbers that are written out, by themselves or as one tuple."""
    if len(nodes) == 1 and isinstance(nodes[0], ast.Tuple | ast.List):
        nodes = nodes[0].elts
    found = tuple(node.value for node in nodes if isinstance(node, ast.Constant) and type(node.value) is int)
    if len(found) != len(nodes):
        raise _UnseenUse("an axis is not written as a number")
    return found


def _shape_of(arguments: Sequence[ast.expr], keywords: dict[str | None, ast.expr]) -> tuple[int | None, ...]:
    """The shape that `reshape` is given: numbers, or None where a size is not seen."""
    parts = arguments[0].elts if len(arguments) == 1 and isinstance(arguments[0], ast.Tuple | ast.List) else arguments
    if keywords or not parts:
        raise _UnseenUse("the arguments of `reshape` are not seen")
    sizes: list[int | None] = []
    for part in parts:
        is_number = isinstance(part, ast.Constant) and type(part.value) is int
        is_one = is_number or (len(parts) > 1 and isinstance(part, ast.Name | ast.Attribute | ast.UnaryOp))
        if not is_one:
            raise _UnseenUse("the arguments of `reshape` are not seen")
        sizes.append(part.value if isinstance(part, ast.Constant) and isinstance(part.value, int) else None)
    return tuple(sizes)


def _one_shape(sizes: str, call: ast.Call) -> str:
    """The arguments of a `reshape` as one."""
    return sizes if len(call.args) == 1 else f"({sizes})"


def _value_of(module: ModuleUses, node: ast.expr) -> ast.expr:
    """What a name is bound to where it is read, else the expression itself."""
    if not isinstance(node, ast.Name):
        return node
    owner = module.scope_of(node).owner(node.id)
    reaching = _reaching(module, owner, node) if owner is not None and owner.kind in ("module", "function") else []
    if len(reaching) != 1 or not isinstance(reaching[0].statement, ast.Assign) or reaching[0].value is None:
        return node
    return reaching[0].value


def _device_shape(module: ModuleUses, devices: ast.expr) -> tuple[int | None, ...] | None:
    """The shape of an expression for devices, as far as it is seen."""
    value = _value_of(module, devices)
    if isinstance(value, ast.List):
        return (None,) if any(isinstance(part, ast.Starred) for part in value.elts) else (len(value.elts),)
    if isinstance(value, ast.ListComp):
        return (None,)
    if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice):
        inner = _device_shape(module, value.value)
        return (None,) if inner is not None and len(inner) == 1 else None
    if not isinstance(value, ast.Call):
        return None
    made = module.facts.names.resolve(value.func, module.scope_of(value)) or ""
    if made in ("jax.devices", "jax.local_devices"):
        return (None,)
    if made.endswith(".create_device_mesh") and made.startswith("jax.") and len(value.args) == 1:
        try:
            return _shape_of([value.args[0]], {})
        except _UnseenUse:
            return None
    return None


def _is_array(module: ModuleUses, devices: ast.expr) -> bool:
    """Whether devices are seen to be an array of NumPy."""
    value = _value_of(module, devices)
    if isinstance(value, ast.Attribute) and value.attr == "devices":
        return True
    made = module.facts.names.resolve(value.func, module.scope_of(value)) if isinstance(value, ast.Call) else None
    return made is not None and (made.startswith("numpy.") or (made.startswith("jax.") and made.endswith("_mesh")))


def _rank(module: ModuleUses, node: ast.expr, depth: int = 0) -> int | None:
    """The rank of an array, where the source shows it."""
    value = _value_of(module, node)
    if not isinstance(value, ast.Call) or depth > _DEEPEST:
        return None
    made = module.facts.names.resolve(value.func, module.scope_of(value)) or ""
    own = made.rpartition(".")[2]
    if made == "jax.device_put" and value.args:
        return _rank(module, value.args[0], depth + 1)
    if made in ("jax.numpy.arange", "numpy.arange"):
        return 1
    if made.startswith(("jax.numpy.", "numpy.")) and own in _SHAPED and value.args:
        return _rank_of_shape(value.args[0])
    if made.startswith("jax.random.") and own in ("normal", "uniform") and len(value.args) > 1:
        return _rank_of_shape(value.args[1])
    is_reshape = isinstance(value.func, ast.Attribute) and value.func.attr == "reshape" and not value.keywords
    if is_reshape and isinstance(value.func, ast.Attribute) and _rank(module, value.func.value, depth + 1) is not None:
        return len(value.args) if len(value.args) > 1 else _rank_of_shape(value.args[0]) if value.args else None
    return None


def _rank_of_shape(shape: ast.expr) -> int | None:
    if isinstance(shape, ast.Constant) and type(shape.value) is int:
        return 1
    is_seen = isinstance(shape, ast.Tuple | ast.List) and not any(isinstance(p, ast.Starred) for p in shape.elts)
    return len(shape.elts) if is_seen and isinstance(shape, ast.Tuple | ast.List) else None


# Which value a name has


def _body_of(scope: Scope) -> Sequence[ast.stmt]:
    return scope.node.body if isinstance(scope.node, ast.Module | ast.FunctionDef) else ()


def _reaching(module: ModuleUses, owner: Scope, head: ast.Name) -> Sequence[Binding]:
    """The bindings of which one may be the value of a name where it is read."""
    bindings, body = owner.bindings[head.id], _body_of(owner)
    places = {id(statement): index for index, statement in enumerate(body)}
    if any(id(binding.statement) not in places for binding in bindings):
        return bindings
    scope: Scope | None = module.scope_of(head)
    while scope is not None and scope is not owner:
        if not isinstance(scope.node, ast.ListComp | ast.SetComp | ast.DictComp):
            return bindings
        scope = scope.parent
    here = next((places[id(holder)] for holder in _holders(module, head) if id(holder) in places), None)
    if here is None:
        return bindings
    above = [binding for binding in bindings if places[id(binding.statement)] < here]
    return [max(above, key=lambda binding: places[id(binding.statement)])] if above else bindings


def _holders(module: ModuleUses, node: ast.AST) -> Iterator[ast.AST]:
    yield node
    yield from module.above(node)
