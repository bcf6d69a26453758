"""Switch 64-bit types on and off by `jax.enable_x64`.

    with enable_x64():
        x = jnp.ones(3)
    with disable_x64():
        y = jnp.ones(3)
    ->  with jax.enable_x64(True):
            x = jnp.ones(3)
    ->  with jax.enable_x64(False):
            y = jnp.ones(3)

To check: nothing; the new function takes the same argument, without a default.

Refused: the functions as values; a `target-jax` before 0.8.
See https://docs.jax.dev/en/latest/_autosummary/jax.enable_x64.html
"""

from __future__ import annotations

from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.arguments import append_argument

_HOMES = ("jax.experimental", "jax.experimental.x64_context")
_ENABLE = frozenset(f"{home}.enable_x64" for home in _HOMES)
_DISABLE = frozenset(f"{home}.disable_x64" for home in _HOMES)


class ReplaceX64Contexts(ModernizeCodemod):
    """Writes the new function, with the argument that the old one implied."""

    names: ClassVar[tuple[str, ...]] = (*sorted(_ENABLE), *sorted(_DISABLE))

    def rewrite(self) -> None:
        """Replace one call."""
        if not self.use.is_direct:
            return
        site, call = self.site, self.site.call
        if call is None:
            self.refuse("this is used as a value; write a function that returns `jax.enable_x64(True)`, or `False`")
        site.needs("0.8", "`jax.enable_x64`")
        if not call.args and not call.keywords:
            append_argument(site, call, str(self.use.name in _ENABLE))
        site.replace(self.use.node, site.spell("jax.enable_x64"))
