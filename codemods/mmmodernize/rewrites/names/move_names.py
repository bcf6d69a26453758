"""Write today's names of things that were only renamed or moved.

    from jax.core import Jaxpr, get_aval
    jnp.fix(x), jax.nn.normalize(y)
    ->  from jax.extend.core import Jaxpr
    ->  from jax import typeof as get_aval
    ->  jnp.trunc(x), jax.nn.standardize(y)

Imported names keep their alias. These are the same objects, or functions that computed the same: parts of `jax.core`
that are in `jax.extend.core` and `jax.errors` today, `jax.extend.ffi`, random generators, `jax.lib.xla_bridge`,
`jax.api`, the modules `stax` and `optimizers` that are in `jax.example_libraries` today, refs, names of `jax.numpy`
that NumPy dropped, `DynamicScale`, and a few of optax and chex.

To check: `jax.core.get_aval` gave the value itself a type of its own before JAX 0.4.36; a test for `ConcreteArray` is
reported.

Refused: calls that the new name does not take, such as `core.Var(0, "", aval)`; a `target-jax` that does not have the
new name yet.
See https://docs.jax.dev/en/latest/changelog.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import ClassVar

from mmmodernize.calls.call_forms import calls_of
from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.arguments import make_positional
from mmmodernize.names.name_index import may_use_old_names, numbers
from mmmodernize.names.part_index import moved_calls
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses, OldNameUse
from mmrewrite.source.calls import CallForm

# New home, and the first JAX that has it: the old names, by their own name or as `old:new`.
_MOVES = {
    ("jax.core", "jax.extend.core", "0.4.27"): "ClosedJaxpr Jaxpr JaxprEqn Literal Primitive Token Var jaxpr_as_fun",
    ("jax.core", "jax.extend.core", "0.9.0"): "mapped_aval unmapped_aval",
    ("jax.core", "jax.extend.core", "0.10.0"): (
        "AbstractToken DebugInfo DropVar Effect Effects TraceTag check_jaxpr concrete_or_error find_top_trace gensym "
        "get_opaque_trace_state jaxprs_in_params new_jaxpr_eqn no_effects nonempty_axis_env_DO_NOT_USE "
        "primal_dtype_to_tangent_dtype set_current_trace subjaxprs take_current_trace "
        "unsafe_am_i_under_a_jit_DO_NOT_USE unsafe_am_i_under_a_vmap_DO_NOT_USE unsafe_get_axis_names_DO_NOT_USE "
        "valid_jaxtype"
    ),
    ("jax.core", "jax.extend.core.primitives", "0.4.27"): "call_p closed_call_p",
    ("jax.core", "jax.errors", "0.4.13"): (
        "ConcretizationTypeError TracerArrayConversionError TracerIntegerConversionError UnexpectedTracerError"
    ),
    ("jax.core", "jax.errors", "0.10.1"): "InconclusiveDimensionOperation JaxprTypeError",
    ("jax.core", "jax.ffi", "0.11.0"): "abstract_token",
    ("jax.core", "jax", "0.5.3"): "get_aval:typeof",
    ("jax.extend.ffi", "jax.ffi", "0.5.0"): "ffi_call ffi_lowering include_dir pycapsule register_ffi_target",
    ("jax.config", "jax", "0.4.13"): "config",
    ("jax.linear_util", "jax.extend.linear_util", "0.4.16"): (
        "StoreException WrappedFun cache merge_linear_aux transformation transformation_with_aux"
    ),
    ("jax.interpreters.ad", "jax.extend.core.primitives", "0.4.27"): "custom_lin_p",
    ("jax.interpreters.ad", "jax.extend", "0.4.19"): "source_info_util",
    ("jax.core", "jax.extend", "0.4.19"): "source_info_util",
    ("jax.ad", "jax.interpreters.ad", "0.4.13"): (
        "JVPTrace JVPTracer UndefinedPrimal Zero add_jaxvals add_jaxvals_p add_tangents defbilinear defjvp defjvp2 "
        "deflinear deflinear2 get_primitive_transpose instantiate_zeros is_undefined_primal jvp linearize "
        "primitive_jvps primitive_transposes zeros_like_aval"
    ),
    ("jax.interpreters.ad", "jax", "0.4.13"): "config",
    ("jax.interpreters.batching", "jax", "0.4.13"): "Array",
    ("jax.interpreters.batching", "jax.numpy", "0.4.13"): "moveaxis",
    ("jax.interpreters.batching", "jax.interpreters.ad", "0.4.13"): "Zero",
    ("jax.interpreters.partial_eval", "jax.extend.core", "0.4.27"): "Jaxpr",
    ("jax.interpreters.partial_eval", "jax", "0.4.13"): "config",
    ("jax.interpreters.xla", "jax.core", "0.4.13"): "ShapedArray",
    ("jax.interpreters.xla", "jax", "0.4.13"): "Device",
    ("jax.xla", "jax", "0.4.13"): "Device",
    ("jax.interpreters.pxla", "jax.extend.core", "0.4.17"): "array_types",
    ("jax.experimental.pjit", "jax.sharding", "0.4.13"): "NamedSharding",
    ("jax.profiler", "jax.profiler", "0.4.13"): "StepTraceContext:StepTraceAnnotation TraceContext:TraceAnnotation",
    ("jax.abstract_arrays", "jax.core", "0.4.13"): "ShapedArray",
    ("jax.lib.xla_bridge", "jax", "0.4.13"): (
        "default_backend device_count devices local_device_count local_devices process_count process_index"
    ),
    ("jax.api", "jax", "0.4.13"): (
        "ShapeDtypeStruct custom_jvp custom_vjp device_count device_get device_put devices disable_jit eval_shape grad "
        "hessian jacfwd jacobian jacrev jit jvp linear_transpose linearize local_device_count local_devices make_jaxpr "
        "pmap value_and_grad vjp vmap"
    ),
    ("jax.experimental", "jax.example_libraries", "0.4.13"): "optimizers stax",
    ("jax.experimental.stax", "jax.example_libraries.stax", "0.4.13"): (
        "AvgPool BatchNorm Conv Conv1DTranspose ConvTranspose Dense Dropout Elu Exp FanInConcat FanInSum FanOut "
        "Flatten Gelu GeneralConv GeneralConvTranspose Identity LeakyRelu LogSoftmax MaxPool Relu Selu Sigmoid Softmax "
        "Softplus SumPool Tanh elementwise logsoftmax parallel randn serial shape_dependent softmax softplus"
    ),
    ("jax.experimental.optimizers", "jax.example_libraries.optimizers", "0.4.13"): (
        "JoinPoint Optimizer OptimizerState adagrad adam adamax clip_grads constant exponential_decay "
        "inverse_time_decay l2_norm make_schedule momentum nesterov optimizer pack_optimizer_state piecewise_constant "
        "polynomial_decay rmsprop rmsprop_momentum sgd sm3 unpack_optimizer_state"
    ),
    ("jax.lib.xla_bridge", "jax.extend.backend", "0.4.33"): "get_backend",
    ("jax.lib.xla_bridge", "jax.extend.backend", "0.7.0"): "get_compile_options",
    ("jax.lib.xla_client", "jax", "0.4.13"): "Device",
    ("jax.lib.xla_extension", "jax", "0.4.13"): "Device",
    ("jax.lib.xla_client", "jax.lax", "0.4.35"): "FftType",
    ("jax", "jax.extend.backend", "0.4.26"): "clear_backends",
    ("jax", "jax.api_util", "0.4.13"): "flatten_fun_nokwargs",
    ("jax", "jax.tree_util", "0.4.13"): "treedef_is_leaf",
    ("jax", "jax.core", "0.4.13"): "ShapedArray",
    ("jax", "functools", "0.4.13"): "partial",
    ("jax.util", "functools", "0.4.13"): "partial",
    ("jax.core", "functools", "0.4.13"): "partial",
    ("jax.lax", "functools", "0.4.13"): "partial",
    ("jax.util", "math", "0.4.13"): "prod",
    ("jax.core", "math", "0.4.13"): "prod",
    ("jax.lax", "math", "0.4.13"): "prod",
    ("jax", "jax", "0.7.2"): "ArrayRef:Ref array_ref:new_ref",
    ("jax.ref", "jax", "0.7.2"): "ArrayRef:Ref array_ref:new_ref",
    ("jax.experimental", "jax", "0.7.2"): "MutableArray:Ref mutable_array:new_ref",
    ("jax.prng", "jax.extend.random", "0.4.16"): (
        "rbg_prng_impl seed_with_impl threefry2x32_p threefry_2x32 threefry_prng_impl unsafe_rbg_prng_impl"
    ),
    ("jax.random", "jax.extend.random", "0.4.16"): "threefry2x32_p threefry_2x32",
    ("jax.numpy", "jax.numpy", "0.4.13"): (
        "alltrue:all cumproduct:cumprod fix:trunc product:prod round_:round row_stack:vstack sometrue:any"
    ),
    ("jax.numpy", "jax", "0.4.13"): "DeviceArray:Array",
    ("jax.numpy", "jax.numpy", "0.4.26"): "trapz:trapezoid",
    ("jax.nn", "jax.nn", "0.4.13"): "normalize:standardize",
    ("jax.scipy.linalg", "jax.numpy", "0.4.13"): "tril triu",
    ("jax.experimental.layout", "jax.experimental.layout", "0.6.1"): "with_dll_constraint:with_layout_constraint",
    ("jax.sharding", "jax.sharding", "0.5.3"): "AxisTypes:AxisType",
    ("jax.experimental.pallas.tpu", "jax.experimental.pallas", "0.6.0"): (
        "DeviceIdType run_scoped semaphore semaphore_read semaphore_signal semaphore_wait"
    ),
    ("jax.experimental.pallas.tpu", "jax.experimental.pallas", "0.4.34"): "ANY CostEstimate",
    ("jax.experimental.pallas.tpu.TPUMemorySpace", "jax.experimental.pallas", "0.4.34"): "ANY",
    ("jax.experimental.pallas.tpu.MemorySpace", "jax.experimental.pallas", "0.4.34"): "ANY",
    ("jax.experimental.pallas.tpu.MemorySpace", "jax.experimental.pallas", "0.7.0"): "HOST",
    ("jax.experimental.pallas.MemorySpace", "jax.experimental.pallas", "0.7.0"): "HOST",
    ("jax.experimental.pallas.tpu", "jax.experimental.pallas", "0.7.0"): "HOST",
    ("jax.experimental.pallas.tpu", "jax.experimental.pallas", "0.8.1"): "delay",
    ("jax.experimental.pallas.tpu", "jax.experimental.pallas.tpu", "0.6.2"): (
        "TPUCompilerParams:CompilerParams TPUMemorySpace:MemorySpace"
    ),
    ("jax._src.core", "jax.extend.core", "0.4.27"): "ClosedJaxpr",
    ("jax.ops", "jax.numpy", "0.4.13"): "index:s_",
    ("flax.nnx.object", "flax.nnx", "0.9.0"): "Object",
    ("flax.optim", "flax.training.dynamic_scale", "0.5.0"): "DynamicScale DynamicScaleResult",
    ("flax.optim.dynamic_scale", "flax.training.dynamic_scale", "0.5.0"): "DynamicScale DynamicScaleResult",
    ("optax", "optax", "0.1.8"): ("additive_weight_decay:add_decayed_weights AdditiveWeightDecayState:EmptyState"),
    ("optax", "optax", "0.2.3"): ("maybe_update:conditionally_transform MaybeUpdateState:ConditionallyTransformState"),
    ("optax", "optax.tree", "0.2.5"): "global_norm:norm",
    ("optax", "optax.contrib", "0.1.8"): ("differentially_private_aggregate DifferentiallyPrivateAggregateState dpsgd"),
    ("orbax.checkpoint.type_handlers", "orbax.checkpoint.metadata", "0.4.13"): (
        "ArrayMetadata Metadata ScalarMetadata ShardingMetadata StringMetadata"
    ),
    ("chex", "chex", "0.1.5"): (
        "assert_tree_all_close:assert_trees_all_close assert_tree_all_equal_shapes:assert_trees_all_equal_shapes "
        "assert_tree_all_equal_structs:assert_trees_all_equal_structs "
        "assert_tree_all_equal_comparator:assert_trees_all_equal_comparator"
    ),
}


# Keywords that are called otherwise under the new name.
_RENAMED: Mapping[str, Mapping[str, str]] = {
    "jax.experimental.pallas.tpu.semaphore_wait": {"dec": "value"},
    "jax.interpreters.batching.moveaxis": {"x": "a", "src": "source", "dst": "destination"},
    "optax.global_norm": {"updates": "tree"},
    "optax.maybe_update": {"should_update_fn": "should_transform_fn"},
}

_CLOSED_JAXPRS = ("jax.core.ClosedJaxpr", "jax._src.core.ClosedJaxpr")

# How many arguments by position are taken as before, where the parameters are called otherwise.
_TAKEN = dict.fromkeys(_CLOSED_JAXPRS, 2)

# All parameters, in their places: their names are others today.
_BY_POSITION = dict.fromkeys(_CLOSED_JAXPRS, ("jaxpr", "consts"))

# So many arguments, all by position, only a release took that had the parameters of today.
_OF_TODAY = {"jax.core.Var": 1}

# Modules that are to be imported by themselves, and their aliases: the first is written, others are recognized.
_IMPORTED = {
    "flax.training.dynamic_scale": ("dynamic_scale_lib", "flax_dynamic_scale"),
    "jax.extend.backend": ("jex_backend",),
    "jax.extend.core": ("jex_core",),
    "jax.extend.core.primitives": ("jex_primitives",),
    "jax.extend.linear_util": ("lu", "linear_util"),
    "jax.extend.random": ("jex_random",),
    "jax.extend.source_info_util": ("source_info_util", "jex_source_info_util"),
    "jax.ffi": ("ffi", "jax_ffi"),
    "jax.experimental.pallas": ("pl", "pallas"),
    "jax.example_libraries.optimizers": ("optimizers",),
    "jax.example_libraries.stax": ("stax",),
}


def _moves() -> Iterator[tuple[str, str, str]]:
    for (old_home, new_home, since), names in _MOVES.items():
        for entry in names.split():
            old, _, new = entry.partition(":")
            yield f"{old_home}.{old}", f"{new_home}.{new or old}", since


class MoveNames(ModernizeCodemod):
    """Moves imports, and names that are written with their module."""

    moved: ClassVar[Mapping[str, str]] = {old: new for old, new, _ in _moves()}
    since: ClassVar[Mapping[str, str]] = {old: since for old, _, since in _moves()}

    @classmethod
    def may_be_in(cls, data: bytes) -> bool:
        """They are names of the index."""
        return may_use_old_names(data)

    @classmethod
    def homes(cls, target: tuple[int, ...]) -> Mapping[str, str]:
        """The new names that JAX `target` has; of other packages, all, since today's JAX needs newer ones."""
        return {
            old: new for old, new in cls.moved.items() if numbers(cls.since[old])[:3] <= target or not _is_of_jax(old)
        }

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Names that are written as attributes, those that the oldest JAX does not have, and calls that change."""
        uses = list(module.uses(cls.moved))
        kept = {use.name for use in uses if _is_refused_alias(module, use)}
        for use in uses:
            is_written = use.is_direct and (isinstance(use.node, ast.Attribute) or use.name not in context.moved)
            is_written = is_written and not _is_of_moved_module(use, context)
            is_changed = any(_changes(use.name, found) for found in calls_of(module, use.node))
            if is_written or is_changed or (use.is_direct and use.name in kept):
                yield Location(module, use.node, use)

    def rewrite(self) -> None:
        """Write the new name, and the keywords of its calls."""
        site, name, node = self.site, self.use.name, self.use.node
        if _is_of_jax(name):
            site.needs(self.since[name], f"`{self.moved[name]}`, today's name of `{name}`,")
        for found in calls_of(site.module, node):
            problem = _problem(name, found)
            if problem is not None:
                self.refuse(f"`{name}` is `{self.moved[name]}` today, which {problem}", found.call)
            for keyword in found.call.keywords:
                new = _RENAMED.get(name, {}).get(keyword.arg or "")
                if new is not None:
                    site.rename_keyword(keyword, new)
                if keyword.arg in _places(name, found):
                    make_positional(site, keyword)
        is_given = isinstance(site.module.parents.get(node), ast.Call)
        if self.use.is_direct and not is_given and name in moved_calls():
            # As in `V = core.Var`, where `V(0, "", aval)` stays.
            alias = next((use for use in site.module.uses((name,)) if _is_refused_alias(site.module, use)), None)
            if alias is not None:
                self.refuse(f"line {alias.node.lineno} calls `{name}` in a way in which it is not called today")
        is_written = isinstance(node, ast.Attribute) or name not in site.context.moved
        if self.use.is_direct and is_written and not _is_of_moved_module(self.use, site.context):
            site.replace(node, self.spelled(self.moved[name]))

    def spelled(self, new: str) -> str:
        """The text for a new name, from an import of its own where `import jax` does not import its module."""
        home, _, own = new.rpartition(".")
        if new in _IMPORTED:
            return self.site.draft.imports.member(home, own, _IMPORTED[new])
        if home not in _IMPORTED:
            return self.site.spell(new)
        site = self.site
        line, column = site.statement.lineno, site.statement.col_offset
        found = site.draft.imports.existing(home, site.scope, line, column)
        if found is not None:
            site.draft.spelled.add(found)
            return f"{found}.{own}"
        package, _, module = home.rpartition(".")
        return f"{self.site.draft.imports.member(package, module, _IMPORTED[home])}.{own}"


def _is_of_moved_module(use: OldNameUse, context: ModernizeContext) -> bool:
    """Whether the use is an attribute of a module by its one local name, and moves with the module's import."""
    home, _, own = use.name.rpartition(".")
    is_member = isinstance(use.node, ast.Attribute) and isinstance(use.node.value, ast.Name)
    return is_member and f"{context.moved.get(home)}.{own}" == context.moved.get(use.name)


def _is_refused_alias(module: ModuleUses, use: OldNameUse) -> bool:
    """Whether a use is the call of another name for a moved one, which its new name does not take."""
    return not use.is_direct and any(_problem(use.name, found) is not None for found in calls_of(module, use.node))


def _changes(name: str, found: CallForm) -> bool:
    """Whether a call is written otherwise under the new name, or cannot be."""
    changed = {**_RENAMED.get(name, {}), **_places(name, found)}
    return _problem(name, found) is not None or any(keyword.arg in changed for keyword in found.call.keywords)


def _places(name: str, found: CallForm) -> Mapping[str, int]:
    """The keywords of a call that are written without their names today, if they stand in their places, with these."""
    order = _BY_POSITION.get(name, ())
    named = [keyword.arg for keyword in found.call.keywords]
    is_in_order = found.is_whole and [*named] == [*order[found.count :]]
    return {each: place for place, each in enumerate(order) if each in named} if is_in_order else {}


def _problem(name: str, found: CallForm) -> str | None:
    """Why the new name does not take a call, as the rest of a sentence; None if it does."""
    today = moved_calls().get(name)
    if today is None or (found.is_whole and found.count == _OF_TODAY.get(name) and not found.keywords):
        return None
    gone = today.lost - _RENAMED.get(name, {}).keys() - _places(name, found).keys()
    for keyword in found.call.keywords:
        if keyword.arg in gone or (keyword.arg and today.only is not None and keyword.arg not in today.only):
            by_position = "; pass the arguments by position" if keyword.arg in _BY_POSITION.get(name, ()) else ""
            return f"has no `{keyword.arg}=`{by_position}"
    if "**" in found.stars and today.lost:
        return f"has no `{'=`, `'.join(sorted(today.lost))}=`, and `**` may hide one; write the keywords out"
    same = _TAKEN.get(name, today.same)
    if same is not None and ("*" in found.stars or found.count > same):
        return f"takes {same or 'no'} arguments by position as before; write the call anew"
    lacking = next((asked for asked, place in today.required.items() if found.lacks(asked, place)), None)
    return f"needs `{lacking}`" if lacking is not None else None


def _is_of_jax(name: str) -> bool:
    return name.startswith("jax.")
