"""Report names that are still there and mean something else.

    x.addressable_data(0)  # of what jax.pmap returned
    compiled.cost_analysis()[0]
    jax.random.normal(key, (8,))
    ->  train.py:1:1: since JAX 0.4.34 ... has a leading dimension of 1 ...

What a release changed in silence, by the release notes. Names that programs of today use as much are reported in
projects that use names that were gone in that release, once to a file, and by `--upgrade-to`.

To check: each report; nothing is written but `x.device` for `x.device()` of what is seen to be an array, which raises
today.

Refused: what raises today. The rest is left and reported.
See https://docs.jax.dev/en/latest/changelog.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.calls.call_forms import call_of
from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.modules.project_names import ProjectAge
from mmmodernize.names.changed_meanings import CHANGED_MEANINGS, ChangedMeaning, meaning_words
from mmmodernize.names.gate import uses_any
from mmmodernize.names.name_index import PACKAGES, TITLES
from mmmodernize.names.shared_names import FROZEN_DICTS
from mmmodernize.sites.site import Location, ModernizeContext
from mmmodernize.text.checkpoint_paths import relative_path
from mmmodernize.types.value_classes import ARRAY, PMAP_RESULT, ValueClasses
from mmrewrite.project.uses import ModuleUses, OldNameUse

_BY_NAME = {
    name: [each for each in CHANGED_MEANINGS if name in each.names] for row in CHANGED_MEANINGS for name in row.names
}
_DEVICE = "jax.Array.device"
_SHARDS = frozenset(("addressable_data", "addressable_shards", "global_shards", "device_buffers"))
_ATTENTIONS = frozenset(
    f"flax.linen.{name}" for name in ("MultiHeadDotProductAttention", "MultiHeadAttention", "SelfAttention")
)
_CLIENT, _NAMES, _COST = "TFRT_CPU", "sharding_names", "cost_analysis"
# What may be asked of an object that comes to a file which names no package.
_MEMBERS = _SHARDS | {"device", "get_bind_params", _COST, _NAMES}
_STOPPING = "flax.training.early_stopping.EarlyStopping"
_DICTIONARIES = frozenset(
    (
        "builtins.dict",
        *(f"{home}.{name}" for home in ("collections.abc", "typing") for name in ("Mapping", "MutableMapping")),
    )
)
# Of attributes, calls and strings: the package, the release, and what it says.
_TOLD: dict[str, tuple[str, str, str]] = {
    "shards": (
        "jax",
        "0.4.34",
        "what `jax.pmap` returns has shards with a leading dimension of 1, as the whole array has; take `[0]` of each",
    ),
    "cost": ("jax", "0.4.38", "`cost_analysis()` gives the dictionary itself and no list; leave the `[0]` out"),
    "device": ("jax", "0.4.31", "`device` of an array is a property; write `x.device`"),
    "bind": (
        "jax",
        "0.9.2",
        "`get_bind_params` gives the parameters alone, with `subfuns` among them; write "
        "`bind_params = primitive.get_bind_params(params)` and `primitive.bind(*args, **bind_params)`",
    ),
    "client": ("jax", "0.10.0", "devices of a CPU are called `cpu:0` and no more `TFRT_CPU_0`"),
    "protocol": (
        "jax",
        "0.8.0",
        "compiled functions, such as `jnp.dot`, take no argument by its `__jax_array__`; give them `jnp.asarray(x)`, "
        "or register the class as a node of trees",
    ),
    "names": ("flax", "0.12.4", "`sharding_names` of variables is `out_sharding`"),
    "attention": (
        "flax",
        "0.7.5",
        "the third argument is the values and no more the mask; pass `mask=` and `deterministic=` by name",
    ),
    "frozen": (
        "flax",
        "0.7.2",
        "this is false of variables, which are dictionaries; ask for `(dict, FrozenDict)` where they are meant",
    ),
    "carry": (
        "flax",
        "0.7.0",
        "`initialize_carry` of a cell is called as `cell.initialize_carry(rng, input_shape)`; take these parameters",
    ),
    "path": (
        "orbax.checkpoint",
        "0.4.8",
        "checkpoints have absolute paths alone, and this one is relative",
    ),
    "stopping": ("flax", "0.7.5", "`update` returns the new state alone; ask its `has_improved`"),
}


class ReportChangedMeanings(ModernizeCodemod):
    """Reports uses by name, and what the source shows to be about changed members."""

    changed_in: ClassVar = {
        **{name: (rows[0].package, rows[0].release, "changes") for name, rows in _BY_NAME.items()},
        _DEVICE: ("jax", "0.4.31", "stops"),
    }

    extra_markers: ClassVar[tuple[bytes, ...]] = (
        *(b".addressable_", b".global_shards", b".device_buffers", b".device()", b"cost_analysis", b"TFRT_CPU"),
        *(b"get_bind_params", b"__jax_array__", b"initialize_carry", b"sharding_names", b"EarlyStopping"),
        *(b"Checkpointer", b"CheckpointManager", b"orbax", b"restore_checkpoint", b"save_checkpoint"),
        *(b"DotProductAttention", b"MultiHeadAttention", b"SelfAttention", b"FrozenDict"),
    )

    @classmethod
    def may_be_in(cls, data: bytes) -> bool:
        """Names that have changed, and members."""
        return super().may_be_in(data) or uses_any(data, PACKAGES, meaning_words())

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Uses of the names, the first of each row alone for common ones, and changed members."""
        age, seen = context.analysis(ProjectAge), set[int]()
        for use in module.uses(_BY_NAME):
            row = _row(module, use, age, context)
            if row is None or id(row) in seen:
                continue
            if row.is_common:
                seen.add(id(row))
            yield Location(module, use.node, use)
        is_named = not module.roots.isdisjoint(("jax", "flax", "orbax")) or module.uses_any(FROZEN_DICTS)
        if is_named or (not _MEMBERS.isdisjoint(module.attributes) and context.flow.is_beside(module, "jax", "flax")):
            for node in module.nodes_of(*_kinds_of_nodes(module)):
                kind = _kind(context, module, node)
                if kind is not None and kind != "protocol":
                    yield Location(module, node, part=_DEVICE if kind == "device" else "")
        if age.is_before(*_TOLD["protocol"][:2], module):
            yield from (Location(module, node) for node in module.methods.get("__jax_array__", ()))
        for node in module.methods.get(_CARRY, ()):
            if _kind(context, module, node) == "carry":
                yield Location(module, node)

    def rewrite(self) -> None:
        """Report the place."""
        site = self.site
        if site.use is not None:
            row = _row(site.module, self.use, site.context.analysis(ProjectAge), site.context)
            assert row is not None
            site.leave(f"since {TITLES[row.package]} {row.release} it {row.told}")
        kind = _kind(site.context, site.module, site.node)
        assert kind is not None
        package, release, told = _TOLD[kind]
        if kind == "device" and isinstance(site.node, ast.Call) and isinstance(site.node.func, ast.Attribute):
            if site.context.analysis(ValueClasses).of(site.module, site.node.func.value) == ARRAY:
                site.needs("0.4.31", "`device` as a property")
                site.drop_brackets(site.node)
                return
            site.leave(f"if this is an array: since {TITLES[package]} {release}, {told}")
        text = f"since {TITLES[package]} {release}, {told}"
        path = relative_path(site.context, site.module, site.node) if isinstance(site.node, ast.Call) else None
        if kind == "path" and path is not None:
            if path.is_certain:
                self.refuse(text + path.told, path.node)
            site.leave(text + path.told)
        if kind in ("cost", "bind", "attention", "stopping"):
            self.refuse(text)
        site.leave(text)


_Container = ast.Tuple | ast.List | ast.Set | ast.Dict | ast.BinOp
_CONTAINERS = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.BinOp)
_CHOOSING: tuple[type[ast.AST], ...] = (ast.MatchClass, ast.FunctionDef, *_CONTAINERS)
# Functions of `functools.singledispatch` choose by the class that is given to this method, or annotated below it.
_REGISTER = "register"
_CLASS_TESTS = frozenset(("isinstance", "issubclass", "assertIsInstance", "assertNotIsInstance"))
_CARRY = "initialize_carry"


def _kinds_of_nodes(module: ModuleUses) -> Iterator[type[ast.AST]]:
    """The kinds of nodes among which some may be about changed members, by the words of a module."""
    yield ast.Call
    if any(_CLIENT in str(node.value) for node in module.strings):
        yield ast.Constant
    if not module.attributes.keys().isdisjoint((*_SHARDS, _NAMES)):
        yield ast.Attribute
    if _COST in module.attributes:
        yield ast.Subscript
    if module.uses_any(FROZEN_DICTS):
        yield ast.Compare
    if "FrozenDict" in module.facts.source.text:
        yield from _CHOOSING


def _maps(module: ModuleUses) -> bool:
    """Whether a module uses `jax.pmap`, so that arrays that come from elsewhere may come from that."""
    return module.uses_any(("jax.pmap",))


def _squeezes(module: ModuleUses, shards: ast.AST) -> bool:
    """Whether the function around takes the leading dimension away, as code of today does."""
    around = next((each for each in module.above(shards) if isinstance(each, ast.FunctionDef)), shards)
    return any(isinstance(each, ast.Attribute) and each.attr == "squeeze" for each in ast.walk(around))


def _row(module: ModuleUses, use: OldNameUse, age: ProjectAge, context: ModernizeContext) -> ChangedMeaning | None:
    """The change that a use meets."""
    return next((row for row in _BY_NAME[use.name] if _meets(module, use, row, age, context)), None)


def _meets(
    module: ModuleUses, use: OldNameUse, row: ChangedMeaning, age: ProjectAge, context: ModernizeContext
) -> bool:
    if row.is_common and not age.is_before(row.package, row.release, module):
        return False
    if not module.words.isdisjoint(row.beside):
        return False
    form = call_of(module, use.node)
    if form is None:
        return not row.keyword and not row.arguments
    if row.is_of_object and form.is_called and context.analysis(ValueClasses).are_given(module, form.call, row.package):
        return False
    keywords = {keyword.arg for keyword in form.keywords}
    if not form.is_called:
        # What is not given here may be given in the call.
        return not row.arguments and row.keyword in ("", *keywords)
    if row.keyword.endswith("=None"):
        return row.keyword.removesuffix("=None") not in keywords
    by_place = len(form.positional) + len(keywords) if row.arguments else 0
    return (not row.keyword or row.keyword in keywords) and by_place >= row.arguments


def _kind(context: ModernizeContext, module: ModuleUses, node: ast.AST) -> str | None:
    """Which change of members a node is about, by its key in the table of what is told."""
    classes = context.analysis(ValueClasses)
    if isinstance(node, ast.Constant):
        return "client" if isinstance(node.value, str) and _CLIENT in node.value else None
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        if node.attr in _SHARDS:
            owner = classes.of(module, node.value)
            is_one = owner == PMAP_RESULT or (owner is None and _maps(module))
            is_told = is_one or (classes.may_be_mapped(module, node.value) and not _squeezes(module, node))
            return "shards" if is_told else None
        is_of_nnx = node.attr == _NAMES and context.flow.is_beside(module, "flax")
        return "names" if is_of_nnx else None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == 0:
        value = node.value
        is_cost = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
        return "cost" if is_cost and value.func.attr == _COST else None  # type: ignore[attr-defined]
    if isinstance(node, ast.Compare):
        return "frozen" if _asks_for_frozen(module, node.left, *node.comparators) else None
    if isinstance(node, ast.MatchClass | _Container):
        return "frozen" if _chooses_frozen(module, node) else None
    if isinstance(node, ast.FunctionDef):
        if node.name == "__jax_array__":
            return "protocol"
        if node.name == _CARRY:
            return "carry" if _makes_carries_as_before(module, node) else None
        return "frozen" if _is_registered_for_frozen(module, node) else None
    if not isinstance(node, ast.Call):
        return None
    if relative_path(context, module, node) is not None:
        return "path"
    if isinstance(node.func, ast.Attribute) and node.func.attr == "device" and not node.args and not node.keywords:
        is_one = "device" not in module.methods and context.name_of(module, node.func) is None
        return "device" if is_one and context.flow.is_beside(module, "jax") else None
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
    if called in _CLASS_TESTS and len(node.args) > 1:
        return "frozen" if _asks_for_frozen(module, node.args[1]) and not _thaws(module, node) else None
    if called == _REGISTER and node.args:
        return "frozen" if _asks_for_frozen(module, node.args[0]) else None
    if len(node.args) > 2 and classes.of(module, node.func) in _ATTENTIONS:
        # Newer programs pass the values there.
        is_mask = "mask" in ast.unparse(node.args[2]).lower() or isinstance(node.args[2], ast.Constant)
        return (
            "attention" if is_mask or context.analysis(ProjectAge).is_before(*_TOLD["attention"][:2], module) else None
        )
    holder = module.parents.get(node)
    if isinstance(holder, ast.Assign) and isinstance(holder.targets[0], ast.Tuple | ast.List):
        if called == "get_bind_params" and len(holder.targets[0].elts) == 2:
            return "bind"
        if isinstance(node.func, ast.Attribute) and called == "update":
            return "stopping" if classes.of(module, node.func.value) == _STOPPING else None
    return None


def _asks_for_frozen(module: ModuleUses, *classes: ast.expr) -> bool:
    """Whether a `FrozenDict` is among some classes, and no dictionary."""
    asked = [each for group in classes for each in _alternatives(group)]
    if all(use.node not in asked for use in module.uses(FROZEN_DICTS)):
        return False
    return all(module.full_name(each) not in _DICTIONARIES for each in asked)


def _chooses_frozen(module: ModuleUses, node: ast.MatchClass | _Container) -> bool:
    """Whether a pattern, or a container of classes that is no annotation, has a `FrozenDict` and no dictionary."""
    if isinstance(node, ast.MatchClass):
        match = next(each for each in module.above(node) if isinstance(each, ast.Match))
        others = [
            each.cls for case in match.cases for each in ast.walk(case.pattern) if isinstance(each, ast.MatchClass)
        ]
        takes_any = any(isinstance(each, ast.MatchMapping) for case in match.cases for each in ast.walk(case.pattern))
        return not takes_any and _asks_for_frozen(module, node.cls) and _asks_for_frozen(module, *others)
    values = [key for key in node.keys if key is not None] if isinstance(node, ast.Dict) else [node]
    if not all(isinstance(each, ast.Name | ast.Attribute) for value in values for each in _alternatives(value)):
        return False
    holder: ast.AST = node
    while isinstance(holder, ast.Tuple | ast.List | ast.Set | ast.BinOp):
        holder = module.parents[holder]
    # What a call or a comparison asks is told there.
    is_told = isinstance(holder, ast.Call | ast.Compare | ast.Subscript) and not isinstance(node, ast.Dict)
    is_whole = not isinstance(module.parents[node], _Container) or isinstance(node, ast.Dict)
    return is_whole and not is_told and not module.in_annotation(node) and _asks_for_frozen(module, *values)


def _is_registered_for_frozen(module: ModuleUses, function: ast.FunctionDef) -> bool:
    """Whether `@f.register` reads a `FrozenDict` from the annotation of the first parameter."""
    first = next(iter((*function.args.posonlyargs, *function.args.args)), None)
    decorators = [each for each in function.decorator_list if isinstance(each, ast.Attribute)]
    is_registered = any(each.attr == _REGISTER for each in decorators)
    annotation = first.annotation if first is not None else None
    return is_registered and annotation is not None and _asks_for_frozen(module, annotation)


def _makes_carries_as_before(module: ModuleUses, method: ast.FunctionDef) -> bool:
    """Whether a method of a recurrent cell takes the sizes that Flax passed before."""
    holder = module.parents[method]
    bases = holder.bases if isinstance(holder, ast.ClassDef) else []
    names = [module.full_name(base) or "" for base in bases]
    taken = [each.arg for each in (*method.args.posonlyargs, *method.args.args) if each.arg != "self"]
    is_cell = any(name.startswith("flax.linen.") and "Cell" in name for name in names)
    return is_cell and (len(taken) > 2 or "batch_dims" in taken)


def _alternatives(classes: ast.expr) -> Iterator[ast.expr]:
    """The classes of `(A, B)` and `A | B`."""
    if isinstance(classes, ast.Tuple | ast.List | ast.Set):
        for each in classes.elts:
            yield from _alternatives(each)
    elif isinstance(classes, ast.BinOp):
        yield from _alternatives(classes.left)
        yield from _alternatives(classes.right)
    else:
        yield classes


def _thaws(module: ModuleUses, test: ast.Call) -> bool:
    """Whether a test is that of `if isinstance(x, FrozenDict): x = x.unfreeze()`, which is right for both."""
    branch, value = module.parents.get(test), test.args[0]
    if not isinstance(branch, ast.If) or branch.orelse or len(branch.body) != 1 or not isinstance(value, ast.Name):
        return False
    match branch.body[0]:
        case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call(func=function)):
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
            return target == value.id and called == "unfreeze"
        case _:
            return False
