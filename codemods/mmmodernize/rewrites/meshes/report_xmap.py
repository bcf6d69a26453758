"""Report `xmap` and `serial_loop`, which have no exact replacement.

    f = maps.xmap(body, in_axes=["left", ...], out_axes=["left", ...])
    ->  f = maps.xmap(body, in_axes=["left", ...], out_axes=["left", ...])

Named axes need not be axes of the mesh, and randomness and initialization per shard depend on them. So the calls, the
mesh contexts that reach them, and all that these contexts reach are left as they are. So is the call chain around them:
functions that reach one, and functions that only these reach. The rest of the module, which cannot be imported without
`xmap`, is left alone by every codemod, unless a `pjit` or a mesh context in it is rewritten.

To check: each use by hand; nothing is written.

Refused: every use.
See https://docs.jax.dev/en/latest/notebooks/shard_map.html for what to write by hand.
"""

from __future__ import annotations

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.names.shared_names import XMAPS


class ReportXmap(ModernizeCodemod):
    """Rewrites nothing."""

    names = tuple(XMAPS)
    regional = True

    def rewrite(self) -> None:
        """Report the use."""
        name = self.use.name.rpartition(".")[2]
        self.refuse(f"`{name}` has no exact replacement; write it anew with jax.shard_map or jax.vmap")
