"""What to write in place of old names, where the packages themselves say nothing or too little.

A row for a module is about all names in it that have no row of their own. The sources are the release notes:
https://docs.jax.dev/en/latest/changelog.html and https://flax.readthedocs.io/en/latest/guides/converting_and_upgrading/
"""

from __future__ import annotations

_LINEAR = "write `jax.extend.linear_util`; `wrap_init` takes `debug_info=` there"
_TRACERS = (
    "tracers have no levels and main traces since JAX 0.4.36, so this part of an interpreter is to be written anew: "
    "https://docs.jax.dev/en/latest/autodidax2_part1.html"
)
_INTERNAL = (
    "it was internal; write what it was used for with `jax.make_jaxpr`, `jax.jvp`, `jax.vjp`, `jax.linearize` and "
    "`jax.extend.core`, or keep a copy of it in your project"
)
_XLA_CLIENT = "it was internal; devices are `jax.devices()`, executables `jax.jit(f).lower(...).compile()`"

_COMPILED = "; their class is `type(jax.jit(lambda: None))`"

_MAPS = "write the function anew with `jax.shard_map` or `jax.vmap`"
_CONFIG = "import `jax`, and write `jax.config`"
_WITH_FLAGS = (
    *("api", "api_util", "config", "core", "dispatch", "dtypes", "interpreters.pxla", "lax.lax", "numpy.lax_numpy"),
    *("pjit", "public_test_util", "test_util", "util", "xla_bridge"),
)

ADVICE = {
    "jax.linear_util.wrap_init": "write `jax.extend.linear_util.wrap_init`, which takes `debug_info=` as well",
    "jax.linear_util": _LINEAR,
    "jax.prng": "write `jax.extend.random`, or `jax.random.key(seed, impl=...)` where a name of a generator is meant",
    "jax.abstract_arrays": "write `jax.core.ShapedArray` for `ShapedArray`, and `jax.extend.core` for the rest",
    "jax.config": _CONFIG,
    "jax.config.config": _CONFIG,
    "jax.xla_computation": "write `jax.jit(f).lower(*args).compiler_ir('hlo')`",
    "jax.custom_remat": "write `jax.checkpoint` with a policy",
    "jax.device_put_replicated": "`mmruntime.compat.device_put_replicated` does the same",
    "jax.util.wraps": "write `functools.wraps(f)`, and set `__doc__` where `docstr=` was given",
    "jax.util": "it was internal; `map` and `zip(..., strict=True)`, `functools.partial` and `math.prod` do its work",
    "jax.experimental.maps": _MAPS,
    "jax._src.maps": _MAPS,
    "jax._src.device_array": "write `jax.Array`",
    "jax._src.global_device_array": "write `jax.Array`, and `jax.make_array_from_callback` to make one",
    "jax._src.config.flags": _CONFIG,
    **{f"jax._src.{module}.FLAGS": _CONFIG for module in _WITH_FLAGS},
    "jax.experimental.host_callback": (
        "write `jax.experimental.io_callback`, or `jax.pure_callback` for functions without effects, with the shapes "
        "of the result; `id_print` is `jax.debug.print`, `id_tap` without result is `jax.debug.callback`"
    ),
    "jax.experimental.export": "write `jax.export`",
    "jax.experimental.array_api": "write `jax.numpy`, which follows the array API standard",
    "jax.experimental.attrs": "write `jax.new_ref` for state",
    "jax.experimental.x64_context": "write `jax.enable_x64(True)` and `jax.enable_x64(False)`",
    "jax.experimental.shard_map": "it was internal to `shard_map`, which is `jax.shard_map` today",
    "jax.interpreters.pxla.device_put": (
        "write `[jax.device_put(shard, device) for shard, device in zip(x, devices)]`, with `x` for each shard where "
        "it has `replicate=True`"
    ),
    "jax.interpreters.xla.device_put": "write `jax.device_put(x, device)`, which this gave as a tuple",
    "jax.interpreters.xla.abstractify": "write `jax.typeof(x)`, or `jax.extend.core.valid_jaxtype(x)` to test for it",
    **{
        f"jax.lib.xla_{module}.{name}": f"write `type(jax.{wrapper}(lambda: None))`"
        for module in ("client", "extension")
        for name, wrapper in (("PjitFunction", "jit"), ("PmapFunction", "pmap"))
    },
    **dict.fromkeys(("jax.interpreters.xla.xe", "jax.interpreters.xla.xc"), _XLA_CLIENT + _COMPILED),
    "jax.experimental.export.export": "write `jax.export.export`, where `lowering_platforms=` is `platforms=`",
    "jax.interpreters.batching.not_mapped": "write `None`, which it was",
    "jax.interpreters.ad": _INTERNAL,
    "jax.interpreters.batching": _INTERNAL,
    "jax.interpreters.partial_eval": _INTERNAL,
    "jax.interpreters.pxla": "it was internal; layouts are `NamedSharding`s, programs `jax.jit(f).lower(...)`",
    "jax.interpreters.xla": "it was internal; lowerings are registered with `jax.interpreters.mlir.register_lowering`",
    "jax.lib.xla_client": _XLA_CLIENT,
    "jax.lib.xla_client.PaddingType": "no function of JAX takes it; write texts, or an `enum` of your own",
    "jax.lib.xla_extension": _XLA_CLIENT,
    "jax.lib.xla_bridge": "write `jax.extend.backend`, or `jax.devices()` and `jax.default_backend()`",
    "jax.core.ConcreteArray": "write `isinstance(x, jax.core.Tracer)` to tell values that are known from those traced",
    "jax.core.thread_local_state": "the names of axes are `jax.extend.core.unsafe_get_axis_names_DO_NOT_USE()`",
    "jax.core.NamedShape": "shapes have no names since `xmap` is gone; use the tuple",
    "jax.sharding.AxisTypes": "write `jax.sharding.AxisType`",
    "jax.sharding.use_mesh": "write `jax.set_mesh`",
    "jax.experimental.pallas.dot": "write `jax.lax.dot(x, y, preferred_element_type=jnp.float32)`, as it gave float32",
    "jax.xla": "it was internal; devices are `jax.Device`, and programs `jax.jit(f).lower(...)`",
    "jax.spmd_mode": "arrays over several processes may be computed with anywhere; leave it out",
    "jax.lax.tie_in": "it returned its second argument; write that",
    "jax.lax.pdot": "write `jax.lax.psum(jnp.dot(x, y), axis_name)`",
    "jax.lax.xeinsum": "write `jax.numpy.einsum`, and `jax.lax.psum` for named axes",
    "jax.lax.infeed": "write `jax.experimental.io_callback`",
    "jax.lax.outfeed": "write `jax.experimental.io_callback`",
    "jax.nn.normalize": "write `jax.nn.standardize`, which it is called today",
    "jax.numpy.in1d": "write `jnp.isin(x.ravel(), y)`",
    "jax.numpy.trapz": "write `jax.numpy.trapezoid`, which it is called today",
    "jax.numpy.row_stack": "write `jax.numpy.vstack`, which it was another name of",
    "jax.numpy.round_": "write `jax.numpy.round`, which it was another name of",
    "jax.numpy.issubsctype": "write `jax.numpy.issubdtype`",
    "jax.numpy.NINF": "write `-jax.numpy.inf`",
    "jax.numpy.PZERO": "write `0.0`",
    "jax.numpy.NZERO": "write `-0.0`",
    "jax.random.shuffle": "write `jax.random.permutation(key, x, independent=True)`",
    "jax.random.KeyArray": "write `jax.Array`",
    "jax.random.PRNGKeyArray": "write `jax.Array`",
    "flax.experimental.nnx": "write `flax.nnx`",
    "flax.optim": "write optax, by https://flax.readthedocs.io/en/latest/guides/converting_and_upgrading/optax_update_guide.html",
    "flax.nnx.graph": "write `flax.nnx`, which has what is public of it",
    "flax.nnx.object": "write `flax.nnx.pytreelib`, which it is today",
    "flax.config": "import `flax`, and write `flax.config`",
    "flax.linen.ConvLSTM": "write `flax.linen.ConvLSTMCell`",
    **dict.fromkeys(
        ("flax.nnx.with_sharding_constraint", "flax.nnx.spmd.with_sharding_constraint"),
        "write `jax.lax.with_sharding_constraint`, with a sharding or under a mesh",
    ),
    "flax.nnx.field": "write `nnx.static()` for what is no part of the tree, `nnx.data()` for what is",
}

# Of keywords, members and flags: what to write, by owner and part.
_OF_TREES = (
    *("tree_has_only_ndarrays", "tree_is_on_device", "tree_is_on_host", "tree_is_sharded", "tree_shape_prefix"),
    *("tree_shape_suffix", "trees_all_equal_comparator", "trees_all_equal_dtypes", "trees_all_equal_shapes"),
    *("trees_all_equal_shapes_and_dtypes", "trees_all_equal_sizes", "trees_all_equal", "trees_all_close"),
    "trees_all_close_ulp",
)
PART_ADVICE = {
    "jax.Array.device_buffers": "write `[shard.data for shard in x.addressable_shards]`",
    "jax.Array.copy_to_device": "write `jax.device_put(x, device)`",
    "jax.Array.indices": "write `[shard.index for shard in x.addressable_shards]`",
    "jax.Array.one_replica_buffer_indices": "write `[s for s in x.addressable_shards if s.replica_id == 0]`",
    "jax.Array.sharding_spec": "write `x.sharding`",
    "jax.Array.tile": "write `jnp.tile(x, reps)`",
    "jax.Array.to_py": "write `np.asarray(x)`",
    "jax.Array.xla_shape": "write `x.shape` and `x.dtype`",
    "jax.Array.client": "write `list(x.devices())[0].client`",
    "jax.Array.split": "write `jnp.split(x, ...)`",
    "jax.Array.broadcast": "write `jax.lax.broadcast(x, sizes)`",
    "jax.Array.broadcast_in_dim": "write `jax.lax.broadcast_in_dim(x, shape, dimensions)`",
    "jax.Array.layout": "write `x.format`",
    **{
        f"jax.interpreters.ad.Zero.{name}": "write `ad.Zero(jax.typeof(x).to_tangent_aval())`"
        for name in ("from_value", "from_primal_value")
    },
    "jax.NamedSharding.with_spec": "write `sharding.update(spec=spec)`",
    "jax.NamedSharding.with_mesh": "write `NamedSharding(mesh, sharding.spec)`",
    "jax.stages.Compiled.compiler_ir": "write `compiled.as_text()`, or `lowered.compiler_ir()`",
    "jax.numpy.where.condition": "pass the condition, `x` and `y` by position",
    "jax.numpy.where.x": "pass the condition, `x` and `y` by position",
    "jax.numpy.where.y": "pass the condition, `x` and `y` by position",
    "jax.numpy.reshape.newshape": "write `shape=`",
    "jax.scipy.special.beta.x": "write `a=`",
    "jax.scipy.special.beta.y": "write `b=`",
    "jax.ShapeDtypeStruct.vma": "write `manual_axis_type=jax.sharding.ManualAxisType(varying=...)`",
    "jax.lax.dot_general.algorithm": "write `precision=`, which takes an algorithm",
    "jax.lax.dot.algorithm": "write `precision=`, which takes an algorithm",
    **{
        f"flax.nnx.{name}.{keyword}": f"write `nnx.{name}` with `in_axes=nnx.StateAxes(...)`, and `nnx.split_rngs`"
        for name in ("scan", "vmap", "pmap")
        for keyword in ("state_axes", "split_rngs", "in_axes_kwargs")
    },
    "flax.nnx.scan.carry_argnum": "write `in_axes=` with `nnx.Carry` in the place of the carry",
    "flax.nnx.scan.scan_output": "write `out_axes=` with `nnx.Carry` in the place of the carry",
    "flax.nnx.grad.wrt": "write `argnums=nnx.DiffState(0, ...)`",
    "flax.nnx.value_and_grad.wrt": "write `argnums=nnx.DiffState(0, ...)`",
    "flax.nnx.jit.donate_state": "write `donate_argnums=`",
    "flax.nnx.jit.constrain_state": "write `jax.lax.with_sharding_constraint` in the function",
    "flax.nnx.RngStream.count": "write `stream.count[...] = count` below; it begins with 0",
    **{
        f"flax.nnx.{home}{name}.state": f"write `nnx.{name}` itself, since states hold variables"
        for home in ("", "variablelib.")
        for name in ("Variable", "Param", "BatchStat", "Cache", "Intermediate", "Perturbation")
    },
    "flax.nnx.LoRA.kernel_init": "write `a_initializer=` and `b_initializer=`",
    "flax.nnx.bridge.ToLinen.metadata_type": "write `metadata_fn=`",
    **{f"chex.assert_{name}.ignore_nones": "it did nothing in chex 0.1.82; leave it out" for name in _OF_TREES},
    "jax_cpu_enable_gloo_collectives": 'write `jax.config.update("jax_cpu_collectives_implementation", "gloo")`',
    "jax_spmd_mode": "arrays over several processes may be computed with anywhere; leave it out",
    "jax_enable_key_reuse_checks": 'write `jax.config.update("jax_debug_key_reuse", ...)`',
    "jax_parallel_functions_output_gda": "results are `jax.Array` always; leave it out",
}

# Members of arrays that were gone before the first release of the index, with the release, and whether nothing else has
# one of that name. They were those of `DeviceArray` and of `ShardedDeviceArray`, classes of jaxlib that no wheel shows:
# the tag of JAX 0.4.8 is the last with `jax/_src/device_array.py`, and the changelog has `tile` under 0.3.17 and
# `block_host_until_ready` under jaxlib 0.4.1.
OLDER_MEMBERS = {
    "block_host_until_ready": ("0.4.1", True),
    "client": ("0.4.9", False),
    "copy_to_device": ("0.4.9", True),
    "indices": ("0.4.9", False),
    "one_replica_buffer_indices": ("0.4.9", True),
    "sharding_spec": ("0.4.9", False),
    "tile": ("0.3.17", False),
    "to_py": ("0.4.9", True),
    "xla_shape": ("0.4.9", False),
}

# Members of arrays and other objects that go by another name today, or are written as a call.
SUCCESSORS = {
    "flax.nnx.VariableState.to_variable": "copy",
    "jax.Array.block_host_until_ready": "block_until_ready",
    "jax.Array.device_buffer": "addressable_data(0)",
    "jax.Array.layout": "format",
}

# Parameters that are passed by position alone today, in their order.
BY_POSITION = {"jax.numpy.where": ("condition", "x", "y")}

# Parameters of another default with which a call does what it did, up to rounding and speed.
SAME_BY_DEFAULT = frozenset(
    (
        # The order of contractions.
        *("jax.numpy.einsum.optimize", "jax.numpy.einsum_path.optimize"),
        # Arrays cannot be written to.
        "jax.numpy.astype.copy",
        # Both are empty.
        *("jax.shard_map.axis_names", "jax.experimental.roofline.roofline.shard_map.axis_names"),
        *(f"jax.experimental.pallas.mosaic_gpu.{name}.num_barriers" for name in ("Barrier", "ClusterBarrier")),
    )
)
