"""Pass keyword arguments by the names that they have today.

    jnp.clip(x, a_min=0, a_max=1)
    jnp.quantile(x, 0.5, interpolation="nearest")
    jax.scipy.linalg.solve(a, b, sym_pos=True)
    jnp.save(file, x, fix_imports=False)
    jax.pure_callback(f, shape, x, vectorized=False)
    ->  jnp.clip(x, min=0, max=1)
    ->  jnp.quantile(x, 0.5, method="nearest")
    ->  jax.scipy.linalg.solve(a, b, assume_a="pos")
    ->  jnp.save(file, x)
    ->  jax.pure_callback(f, shape, x, vmap_method="sequential")

`jnp.save` is `numpy.save`, where `fix_imports` is gone since NumPy 2.5. It was about arrays of Python objects.

To check: nothing; the functions compute the same.

Refused: `initial=` of `softmax`, which has no successor, `concrete=True` of `jax.checkpoint`, `vectorized=True` of
`jax.pure_callback`, of which `vmap_method=` has two kinds, `fix_imports` by place, keywords that `static_argnames` of
`jax.jit` has too, and values that are not written out where the new keyword has others; a `target-jax` without the new
keyword. Reported: `**`, which may hide one, in a file that names one.
See https://docs.jax.dev/en/latest/changelog.html
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.calls.call_forms import calls_of, keywords_of
from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.arguments import make_positional, remove_keyword
from mmmodernize.names.old_keywords import (
    BETA,
    CALLBACK,
    CHECKPOINT,
    CLIP,
    OLD_KEYWORDS,
    QUANTILES,
    RENAMED,
    RESHAPE,
    SAVE,
    SOFTMAX,
    SOLVE,
)
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses

# `a`, `x` and `y` are keywords of many functions, and old in `clip` and `beta` alone.
_HERE = re.compile(
    rb"\b(?:(?:a_min|a_max|interpolation|newshape|sym_pos|initial|concrete|fix_imports|vectorized|clip\s*\(\s*a)\s*=|(?:beta|save)\s*\()"
)


_ARGNAMES = ("static_argnames", "donate_argnames")
# So many arguments by position are left.
_OF_SAVE = 3


class RenameKeywords(ModernizeCodemod):
    """Renames the keywords of calls; a call whose keywords are all of today is no site."""

    changed_in: ClassVar = {
        CLIP: ("jax", "0.10.0", "stops"),
        SOLVE: ("jax", "0.4.21", "stops"),
        CALLBACK: ("jax", "0.6.0", "stops"),
        RESHAPE: ("jax", "0.6.0", "stops"),
        BETA: ("jax", "0.4.36", "stops"),
        **dict.fromkeys(QUANTILES, ("jax", "0.9.0", "stops")),
        **dict.fromkeys(SOFTMAX, ("jax", "0.6.0", "stops")),
        **dict.fromkeys(CHECKPOINT, ("jax", "0.10.0", "stops")),
    }

    extra_markers: ClassVar = (
        *(b"a_min", b"a_max", b"interpolation", b"sym_pos", b"initial", b"concrete", b"vectorized", b"clip", b"save"),
    )
    beside: ClassVar = OLD_KEYWORDS

    @classmethod
    def may_be_in(cls, data: bytes) -> bool:
        """The keywords are rarer than the functions."""
        return b"jax" in data and _HERE.search(data) is not None

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Keywords of calls of these functions, and of partials of them."""
        for use in module.uses(OLD_KEYWORDS):
            for keyword in keywords_of(module, use.node):
                if keyword.arg is None or keyword.arg in OLD_KEYWORDS[use.name]:
                    yield Location(module, keyword, use)
            if use.name == SAVE and any(found.count > _OF_SAVE for found in calls_of(module, use.node)):
                yield Location(module, use.node, use)

    def rewrite(self) -> None:
        """Rename one keyword."""
        keyword, site = self.site.node, self.site
        if not isinstance(keyword, ast.keyword):
            self.refuse("`jnp.save` takes three arguments since NumPy 2.5; leave `fix_imports` out")
        if keyword.arg is None:
            site.leave(f"`**` may hide keywords that `{site.text(self.use.node)}` has no more; write them out")
        self._check_array()
        self._check_transformation(keyword)
        renamed = RENAMED.get(self.use.name, {}).get(keyword.arg)
        if renamed is not None:
            new, since = renamed
            site.needs(since, f"`{new}=` of `{site.text(self.use.node)}`")
            site.rename_keyword(keyword, new)
        elif self.use.name == CLIP:
            make_positional(site, keyword)
        elif self.use.name == SOLVE:
            self._rewrite_sym_pos(keyword)
        elif self.use.name == CALLBACK:
            self._rewrite_vectorized(keyword)
        elif keyword.arg == "initial":
            self.refuse(
                "`initial=` of softmax is gone since JAX 0.6.0; leave it out if `where=` keeps an element of each row",
                keyword,
            )
        elif keyword.arg == "fix_imports":
            remove_keyword(site, keyword)
        else:
            self._drop_concrete(keyword)

    def _check_array(self) -> None:
        """Refuse all keywords of a `clip` whose array cannot become positional where it stands."""
        call = self.site.module.parents[self.site.node]
        assert isinstance(call, ast.Call)
        place = next((index for index, keyword in enumerate(call.keywords) if keyword.arg == "a"), 0)
        if self.use.name == CLIP and place > 0:
            self.refuse("`jnp.clip` takes the array by position; move `a` to the front", call.keywords[place])

    def _check_transformation(self, keyword: ast.keyword) -> None:
        """Refuse a keyword that `jax.jit(f, static_argnames=...)` names as well."""
        for call in self.site.module.above(self.use.node):
            if not isinstance(call, ast.Call):
                return
            # Also of `partial(jax.jit, static_argnames=...)(f)`.
            made = call.func.keywords if isinstance(call.func, ast.Call) else []
            for other in (*call.keywords, *made):
                texts = {each.value for each in ast.walk(other.value) if isinstance(each, ast.Constant)}
                if other.arg in _ARGNAMES and keyword.arg in texts:
                    self.refuse(f"`{other.arg}=` names `{keyword.arg}` as well; write today's name in both", keyword)

    def _rewrite_sym_pos(self, keyword: ast.keyword) -> None:
        if not isinstance(keyword.value, ast.Constant) or not isinstance(keyword.value.value, bool):
            self.refuse('`sym_pos=` is `assume_a="pos"` today, or "gen"; write which', keyword)
        self.site.replace_keyword(keyword, "assume_a", '"pos"' if keyword.value.value else '"gen"')

    def _rewrite_vectorized(self, keyword: ast.keyword) -> None:
        if not isinstance(keyword.value, ast.Constant) or keyword.value.value is not False:
            self.refuse(
                "`vectorized=` of `jax.pure_callback` is gone since JAX 0.6.0, and is passed to the function; where "
                'it is true write `vmap_method="expand_dims"`, with which what is not mapped has a leading dimension '
                'of 1, or "broadcast_all", with which that is repeated; where it is false, "sequential"',
                keyword,
            )
        self.site.needs("0.4.34", "`vmap_method=` of `jax.pure_callback`")
        self.site.replace_keyword(keyword, "vmap_method", '"sequential"')

    def _drop_concrete(self, keyword: ast.keyword) -> None:
        if not isinstance(keyword.value, ast.Constant) or keyword.value.value is not False:
            self.refuse(
                "`concrete=` of `jax.checkpoint` is gone since JAX 0.10; mark static arguments instead", keyword
            )
        remove_keyword(self.site, keyword)
