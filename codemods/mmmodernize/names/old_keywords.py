"""Keywords that functions no longer take: renamed, in another form, or gone."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Set

from mmmodernize.names.part_index import moved_calls, old_keywords

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


# Of a function whose calls a codemod of its own writes anew.
_SHARD_MAP = "jax.experimental.shard_map.shard_map"
_OF_SHARD_MAP = {"auto": "gives way to `axis_names=`", "check_rep": "is `check_vma=`"}


@functools.cache
def lost_keywords() -> Mapping[str, Mapping[str, str]]:
    """By the full name of a function or class, the keywords that it lost, and what became of each."""
    found: dict[str, dict[str, str]] = {_SHARD_MAP: dict(_OF_SHARD_MAP)}
    for name, moved in moved_calls().items():
        found.setdefault(name, {}).update(dict.fromkeys(moved.lost, "is no keyword of what took its place"))
    for name, keywords in OLD_KEYWORDS.items():
        found.setdefault(name, {}).update(dict.fromkeys(keywords, "is no keyword of it today"))
    for name, parts in old_keywords().items():
        found.setdefault(name, {}).update({own: part.told(name) for own, part in parts.items()})
    for name, renamed in RENAMED.items():
        found[name] |= {old: f"is `{new}=` since JAX {since}" for old, (new, since) in renamed.items()}
    return {name: keywords for name, keywords in found.items() if keywords}


def may_give_lost_keywords(words: Set[str]) -> bool:
    """Whether a text with these words can give a function a keyword that it lost."""
    by_own_name = _by_own_name()
    return any(not by_own_name[own].isdisjoint(words) for own in words & by_own_name.keys())


@functools.cache
def _by_own_name() -> Mapping[str, Set[str]]:
    found: dict[str, set[str]] = {}
    for name, keywords in lost_keywords().items():
        found.setdefault(name.rpartition(".")[2], set()).update(keywords)
    return found
