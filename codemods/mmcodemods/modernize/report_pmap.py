"""Say what to do about `jax.pmap`, on request: it works as it did, and there is no text that does exactly the same.

    mmrewrite modernize --select report_pmap
    ->  train.py:12:2: `jax.pmap` works as it did; ...

`pmap` is `jax.jit` of `jax.shard_map` inside since JAX 0.8, so nothing is gained by writing that out. What makes a
program better is to give up the leading axis of devices, and that changes the data pipeline, the random keys, the
checkpoints and every `x[0]`: a redesign by hand.

Refused: every use, with what to do.
See https://docs.jax.dev/en/latest/migrate_pmap.html
"""

from __future__ import annotations

from typing import ClassVar

from mmrewrite.modernize.codemod import ModernizeCodemod


class ReportPmap(ModernizeCodemod):
    """Writes nothing."""

    names: ClassVar[tuple[str, ...]] = ("jax.pmap",)
    on_request_only = True

    def rewrite(self) -> None:
        """One sentence for each use."""
        self.refuse(
            "`jax.pmap` works as it did. To go without it, map the same function by `jax.jit(jax.shard_map(f, "
            "mesh=mesh, in_specs=..., out_specs=..., check_vma=False))` over arrays with no axis of devices; never "
            "compile it for the whole batch by `jax.jit` alone unless its loss is a plain mean"
        )
