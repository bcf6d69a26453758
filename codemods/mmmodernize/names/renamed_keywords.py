"""Keywords that have another name or another form today, by function."""

from __future__ import annotations

from collections.abc import Mapping

QUANTILES = tuple(f"jax.numpy.{name}" for name in ("quantile", "percentile", "nanquantile", "nanpercentile"))
# Flax has these of JAX under names of its own.
SOFTMAX = tuple(
    f"{home}.{name}"
    for home in (
        *("jax.nn", "flax.linen", "flax.linen.activation", "flax.core.nn"),
        *("flax.nnx", "flax.nnx.nn.activations", "flax.experimental.nnx"),
    )
    for name in ("softmax", "log_softmax")
)
CHECKPOINT = ("jax.checkpoint", "jax.remat", "jax.ad_checkpoint.checkpoint", "jax.ad_checkpoint.remat")
CLIP, SOLVE = "jax.numpy.clip", "jax.scipy.linalg.solve"
RESHAPE, BETA = "jax.numpy.reshape", "jax.scipy.special.beta"
CALLBACK = "jax.pure_callback"
# It is `numpy.save`, with the arguments that the release of NumPy has.
SAVE = "jax.numpy.save"

# New names of keywords, and the first JAX that has them.
RENAMED: Mapping[str, Mapping[str, tuple[str, str]]] = {
    CLIP: {"a_min": ("min", "0.4.27"), "a_max": ("max", "0.4.27")},
    **{name: {"interpolation": ("method", "0.4.13")} for name in QUANTILES},
    RESHAPE: {"newshape": ("shape", "0.4.28")},
    BETA: {"x": ("a", "0.4.29"), "y": ("b", "0.4.29")},
}
OTHERS: Mapping[str, frozenset[str]] = {
    CLIP: frozenset(("a",)),
    SOLVE: frozenset(("sym_pos",)),
    **dict.fromkeys(SOFTMAX, frozenset(("initial",))),
    **dict.fromkeys(CHECKPOINT, frozenset(("concrete",))),
    SAVE: frozenset(("fix_imports",)),
    # What it does not know it passes on to the function.
    CALLBACK: frozenset(("vectorized",)),
}
# The old keywords of each function that this codemod is about.
OLD_KEYWORDS: Mapping[str, frozenset[str]] = {
    name: frozenset(RENAMED.get(name, ())) | OTHERS.get(name, frozenset()) for name in {**RENAMED, **OTHERS}
}
