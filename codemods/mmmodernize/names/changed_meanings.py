"""Names that are still there and mean something else, where no codemod writes what they meant.

`tools/index_names.py` cannot see these: they are from the release notes,
https://docs.jax.dev/en/latest/changelog.html and https://github.com/google/flax/releases. What codemods write
instead, or report by themselves, is said by their `changed_in`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from mmmodernize.names.name_index import words_beside


@dataclass(frozen=True)
class ChangedMeaning:
    """One change of what some names mean.

    Attributes:
        names: The full names; one that ends with a dot stands for all functions of a module.
        package: The package, such as `jax`.
        release: The first release, as far as the index has it, that has the new meaning.
        told: What the names mean since then and how to get the old meaning, as the rest of a sentence.
        keyword: A keyword without which a call means what it did; with `=None`, the one with which it does.
        arguments: How many arguments by position a call has at least, to mean something else.
        is_common: Whether programs of today use the names as much. Then they are reported only in projects that use
            names that were gone in the release, and for an upgrade.
        is_of_object: Whether it is a method of objects since then, so that a call which gives one first is of today.
        beside: Words that show a module to be of today, or that it is not concerned.
    """

    names: tuple[str, ...]
    package: str
    release: str
    told: str
    keyword: str = ""
    arguments: int = 0
    is_common: bool = True
    is_of_object: bool = False
    beside: tuple[str, ...] = ()


_SAMPLERS = (
    *("ball", "bernoulli", "beta", "binomial", "bits", "categorical", "cauchy", "chisquare", "choice", "dirichlet"),
    *("double_sided_maxwell", "exponential", "f", "fold_in", "gamma", "generalized_normal", "geometric", "gumbel"),
    *("laplace", "loggamma", "logistic", "lognormal", "maxwell", "multivariate_normal", "normal", "orthogonal"),
    *("pareto", "permutation", "poisson", "rademacher", "randint", "rayleigh", "split", "t", "triangular"),
    *("truncated_normal", "uniform", "wald", "weibull_min"),
)
_GAMMAS = ("ball", "beta", "chisquare", "dirichlet", "gamma", "generalized_normal", "loggamma", "t")
_OF_TODAY = ("out_sharding", "sharding_names", "eager_sharding")
_CARRIES = ("RNNCellBase", "LSTMCell", "OptimizedLSTMCell", "GRUCell", "ConvLSTMCell")

CHANGED_MEANINGS = (
    ChangedMeaning(
        ("jax.jit",),
        "jax",
        "0.4.13",
        "warns about `backend=`; put the arguments there with `jax.device_put`, without it",
        keyword="backend",
        is_common=False,
        # There, another codemod takes it out.
        beside=("multimesh", "legate"),
    ),
    ChangedMeaning(
        ("jax.jit",),
        "jax",
        "0.4.13",
        "warns about `device=`; put the arguments there with `jax.device_put`, without it",
        keyword="device",
        is_common=False,
        # There, another codemod takes it out.
        beside=("multimesh", "legate"),
    ),
    ChangedMeaning(
        tuple(f"jax.random.{name}" for name in _GAMMAS),
        "jax",
        "0.4.16",
        "gives other numbers for the same key, by another algorithm",
    ),
    ChangedMeaning(
        tuple(f"jax.random.{name}" for name in _SAMPLERS),
        "jax",
        "0.5.0",
        "gives other numbers for the same key; the old ones come with "
        '`jax.config.update("jax_threefry_partitionable", False)`',
    ),
    ChangedMeaning(
        ("jax.lax.rng_bit_generator",), "jax", "0.4.26", "takes the first key of a batch alone under `jax.vmap`"
    ),
    ChangedMeaning(
        ("jax.pure_callback",),
        "jax",
        "0.6.0",
        'raises under `jax.vmap` without `vmap_method=`; "sequential" is what it did',
        keyword="vmap_method=None",
        beside=("vectorized",),
    ),
    ChangedMeaning(
        ("jax.pure_callback", "jax.experimental.io_callback", "jax.debug.callback"),
        "jax",
        "0.4.27",
        "gives the function `jax.Array`s for NumPy arrays; apply `np.asarray` there",
    ),
    ChangedMeaning(
        ("jax.numpy.unique",),
        "jax",
        "0.4.24",
        "gives inverse indices in the shape of the input",
        keyword="return_inverse",
    ),
    ChangedMeaning(("jax.numpy.sign",), "jax", "0.4.24", "is `x / abs(x)` for complex numbers"),
    ChangedMeaning(
        ("jax.scipy.special.logsumexp", "flax.linen.logsumexp", "flax.nnx.logsumexp"),
        "jax",
        "0.4.24",
        "gives the sign of a complex sum as `x / abs(x)`",
        keyword="return_sign",
    ),
    ChangedMeaning(("jax.numpy.geomspace",), "jax", "0.4.26", "takes another branch between complex numbers"),
    ChangedMeaning(("jax.scipy.stats.mode",), "jax", "0.4.17", "counts 0 along an axis of size 0"),
    ChangedMeaning(
        ("jax.numpy.ceil", "jax.numpy.floor", "jax.numpy.trunc"),
        "jax",
        "0.4.31",
        "keeps the type of integers; write `.astype(float)` where a float is meant",
    ),
    ChangedMeaning(("jax.numpy.fabs",), "jax", "0.4.33", "raises for complex numbers; write `jnp.abs`"),
    ChangedMeaning(("jax.numpy.isscalar",), "jax", "0.4.35", "is true of every array without dimensions"),
    ChangedMeaning(
        ("jax.scipy.linalg.toeplitz",),
        "jax",
        "0.4.36",
        "takes arrays of several dimensions as batches; pass them through `jnp.ravel`",
    ),
    ChangedMeaning(
        ("jax.scipy.special.gamma", "jax.scipy.special.gammasgn"), "jax", "0.4.36", "is NaN at negative integers"
    ),
    ChangedMeaning(
        ("jax.numpy.linalg.solve",),
        "jax",
        "0.5.0",
        "takes `b` as a matrix unless it has one dimension; for a batch of vectors write "
        "`solve(a, b[..., None]).squeeze(-1)`",
    ),
    ChangedMeaning(("jax.numpy.cov",), "jax", "0.8.0", "is NaN for empty arrays, and takes one row as NumPy 2.2 does"),
    ChangedMeaning(
        ("jax.experimental.multihost_utils.process_allgather",),
        "jax",
        "0.8.0",
        "raises for arrays over several processes without `tiled=True`",
        keyword="tiled=None",
    ),
    ChangedMeaning(
        ("jax.numpy.arange",),
        "jax",
        "0.9.2",
        "is computed on the device where it has a step, less exactly for narrow floats; `jnp.array(np.arange(...))` is "
        "as it was",
        arguments=3,
    ),
    ChangedMeaning(("jax.scipy.stats.rankdata",), "jax", "0.10.0", "always gives floats"),
    ChangedMeaning(
        ("jax.numpy.hstack", "jax.numpy.vstack", "jax.numpy.dstack", "jax.numpy.column_stack"),
        "jax",
        "0.10.0",
        "takes arrays alone; pass lists of lists through `jnp.array`",
    ),
    ChangedMeaning(
        ("jax.lax.cond",),
        "jax",
        "0.4.16",
        "with five arguments takes the second and third as functions of the others where both can be called",
        arguments=5,
    ),
    ChangedMeaning(
        tuple(f"flax.linen.{home}{name}.initialize_carry" for home in ("", "recurrent.") for name in _CARRIES),
        "flax",
        "0.7.0",
        "is a method of an instance; write `nn.LSTMCell(features).initialize_carry(rng, input_shape)`",
        is_common=False,
        is_of_object=True,
    ),
    *(
        ChangedMeaning(
            (f"flax.nnx.{name}",),
            "flax",
            "0.11.0",
            f"gives the variables of the module itself and no copies; write `nnx.{name}(nnx.clone(...))` where what it "
            f"gives is kept and the module changes",
        )
        for name in ("split", "state")
    ),
    ChangedMeaning(
        ("flax.nnx.merge",),
        "flax",
        "0.11.2",
        "makes a module of the variables that it is given and of no copies; write `nnx.clone(nnx.merge(...))` where "
        "these are used again",
    ),
    ChangedMeaning(
        ("flax.nnx.Dropout", "flax.nnx.MultiHeadAttention"),
        "flax",
        "0.11.0",
        "keeps a fork of the `Rngs` that it is given: it draws other numbers, and its state has other paths, so take "
        "`rngs` out of checkpoints of before, as "
        "https://flax.readthedocs.io/en/latest/migrating/nnx_010_to_nnx_011.html shows",
    ),
    ChangedMeaning(
        ("flax.nnx.split_rngs",),
        "flax",
        "0.11.0",
        "raises around calls of layers that were made by `nnx.vmap`: they keep a fork of the `Rngs` that they are "
        "given, so leave it out there, and keep it where they are made",
    ),
    ChangedMeaning(
        ("flax.nnx.with_partitioning",),
        "flax",
        "0.12.0",
        "lays variables out when they are made, in the mesh of the context; pass `eager_sharding=False` where it is an "
        "annotation alone",
        keyword="eager_sharding=None",
        is_common=False,
        beside=_OF_TODAY,
    ),
    ChangedMeaning(
        ("flax.nnx.with_metadata",),
        "flax",
        "0.12.0",
        "lays variables out when they are made, by what is `out_sharding=` today; pass `eager_sharding=False` where it "
        "is an annotation alone",
        keyword="sharding",
        is_common=False,
        beside=_OF_TODAY,
    ),
)


@functools.cache
def meaning_words() -> Mapping[bytes, frozenset[bytes]]:
    """Words of files that may use one of the names, and for each the words that stand beside it there."""
    return words_beside(name for row in CHANGED_MEANINGS for name in row.names)
