"""What functions, methods and fields do with arrays of JAX: compute with them, make them, or hand them on.

That decides where arrays are made under `jax.set_mesh`.
"""

from __future__ import annotations

import operator

from mmrewrite.values.library import GIVE_OWN

# fmt: off
# What `operator` has that computes nothing.
_COMPUTE_NOTHING = ("attrgetter", "call", "is_", "is_not", "itemgetter", "length_hint", "methodcaller")
# Functions of Python that compute with what they are given.
COMPUTE = frozenset(
    (
        *(f"builtins.{name}" for name in ("abs", "divmod", "max", "min", "pow", "round", "sum")),
        *("functools.reduce", "itertools.accumulate", "math.prod"),
        *(f"operator.{name}" for name in dir(operator) if name not in _COMPUTE_NOTHING),
    )
)
# They copy what they are given, and an array is copied to where it is made.
COPY = frozenset(("copy.copy", "copy.deepcopy", "copy.replace"))
# Functions of NumPy that call the method of this name of what they are given, so that JAX computes.
OF_NUMPY = frozenset(
    f"numpy.{name}"
    for name in (
        "all", "amax", "amin", "any", "argmax", "argmin", "argpartition", "argsort", "around", "choose", "clip",
        "compress", "cumprod", "cumsum", "diagonal", "imag", "max", "mean", "min", "nonzero", "prod", "product", "ptp",
        "ravel", "real", "repeat", "reshape", "resize", "round", "round_", "searchsorted", "squeeze", "std", "sum",
        "swapaxes", "take", "trace", "transpose", "var",
    )
)
# Functions that go through what they are given, and modules of Python with such.
GO_THROUGH = frozenset(
    f"builtins.{name}"
    for name in (
        "all", "any", "dict", "enumerate", "filter", "frozenset", "iter", "list", "map", "reversed", "set", "sorted",
        "tuple", "zip",
    )
)
MODULES_GO_THROUGH = (
    "bisect.", "collections.", "heapq.", "itertools.", "math.fsum", "math.sumprod", "random.", "statistics.",
)
# These give none of what they are given, or of what was put into them. An array rounds itself.
GIVE_NOTHING = GIVE_OWN - {"builtins.round"} | {"builtins.slice", "builtins.type"}
# Modules of Python, and plain libraries, whose functions and objects give what they were given, or compute with it.
HAND_ON = frozenset(
    (
        "asyncio", "builtins", "collections", "concurrent", "contextlib", "contextvars", "copy", "dataclasses",
        "einops", "functools", "heapq", "itertools", "multiprocessing", "operator", "pickle", "queue", "random",
        "shelve", "threading", "tqdm", "types", "typing", "weakref",
    )
)
# Names of JAX and its kin that give no array, or one that is on the host.
GIVE_NO_ARRAY = (
    "flax.linen.axis_rules", "flax.linen.logical_", "flax.linen.partitioning.", "flax.linen.spmd.", "jax.Device",
    "jax.ShapeDtypeStruct", "jax.config", "jax.core.ShapedArray", "jax.debug", "jax.default_backend",
    "jax.device_count", "jax.device_get", "jax.devices", "jax.distributed", "jax.eval_shape", "jax.experimental.maps",
    "jax.experimental.mesh_utils", "jax.experimental.pjit", "jax.host_", "jax.interpreters.pxla",
    "jax.lib.xla_bridge", "jax.local_device", "jax.make_mesh", "jax.named_scope", "jax.process_", "jax.profiler",
    "jax.sharding", "mmruntime.compat",
)
# Functions of `jax.lax` that tell the devices of a mapped function of each other, and those that call functions.
COLLECTIVES = frozenset(
    f"jax.lax.{name}"
    for name in (
        "all_gather", "all_to_all", "pbroadcast", "pcast", "pmax", "pmean", "pmin", "ppermute", "pshuffle", "psum",
        "psum_scatter", "pswapaxes",
    )
)
CONTROL_FLOW = frozenset(f"jax.lax.{name}" for name in ("cond", "fori_loop", "map", "scan", "switch", "while_loop"))
# Those that take trees, or functions, and give trees.
LAX_OF_TREES = COLLECTIVES | CONTROL_FLOW | frozenset(
    f"jax.lax.{name}"
    for name in (
        "associative_scan", "custom_linear_solve", "custom_root", "optimization_barrier", "pvary", "stop_gradient",
        "with_sharding_constraint",
    )
)
# These give a function: what that gives may be an array.
TRANSFORMS = frozenset(
    ("jax.checkpoint", "jax.grad", "jax.jit", "jax.pmap", "jax.value_and_grad", "jax.vmap", "mmruntime.compat.pmap")
)
# What these give was given to them.
GIVE_LEAVES = (
    "flax.core.", "flax.jax_utils.prefetch_to_device", "flax.jax_utils.unreplicate", "flax.serialization.",
    "flax.traverse_util.", "jax.block_until_ready", "jax.tree.", "jax.tree_",
)
# What arrays tell of themselves, and what they are once they are on the host.
TOLD = frozenset(("dtype", "itemsize", "nbytes", "ndim", "shape", "sharding", "size", "weak_type"))
TO_THE_HOST = frozenset(("item", "tolist"))
# What arrays compute where they are read like a field.
COMPUTED_FIELDS = frozenset(("T", "imag", "mT", "real"))
# Methods that texts and files have, and arrays do not.
OF_TEXTS = frozenset(
    (
        "as_text", "close", "count", "decode", "encode", "endswith", "find", "format", "index", "isdigit", "join",
        "keys", "lower", "lstrip", "readline", "readlines", "rsplit", "rstrip", "split", "splitlines", "startswith",
        "strip", "title", "upper",
    )
)
# fmt: on
