"""Deal the layers of a scan, or of a `Sequential`, out to the pipeline stages.

    x, _ = jax.lax.scan(block, x, layers)  # mm: stages
    ->  x, _ = mm.stage_scan(jax.lax.scan, axis="stage")(block, x, layers)

The same for a module or a function under `nn.scan` or `nnx.scan`, and with `mm.stage_sequential` for the call of a
`Sequential` of Flax, Haiku or Equinox, whose layers are then the tasks of their stages. Each stage scans its slice of a
stack, and has these layers' parameters and optimizer state; the stack stays one array, with its name and shape.

To check: the layers of the stack cost about the same: each stage gets equally many. If the stages do not
divide their number, the stack lies on one submesh, which the runtime warns of.

Refused: `functools.reduce` and comprehensions, because the text has no call of the layer; a `Sequential` that code out
of view makes, which the text does not show to be one.
See https://docs.jax.dev/en/latest/_autosummary/jax.lax.scan.html for what a scan does.
"""

from __future__ import annotations

import ast
from typing import NoReturn

from mmcodemods._layer_loop import stage_details
from mmcodemods._task import TaskCodemod
from mmrewrite.analysis.loops.scans import SEQUENTIALS, is_lifted_scan, is_nnx_scan, is_sequential
from mmrewrite.directives.vocabulary import FOR, KIND_WORDS, STATEMENT

_SCANS = frozenset(("jax.lax.scan",))


class StageScan(TaskCodemod):
    """Wraps the callee of the scan."""

    directive = "stages"

    def rewrite(self) -> None:
        """Find the one scan of the statement."""
        calls = list(self.site.calls(self.site.statement))
        scans = [call for call in calls if self.is_scan(call)]
        if len(scans) > 1:
            self.refuse("more than one scan in this statement; give each a statement of its own")
        if not scans:
            chains = [call for call in calls if is_sequential(self.site, call.func)]
            if len(chains) != 1:
                self.refuse_others(calls, chains)
            details = stage_details(self.site, counted=True)
            self.wrap_call(self.site.statement, chains[0], "stage_sequential", **details)
            return
        self.wrap_call(self.site.statement, scans[0], "stage_scan", **stage_details(self.site, counted=False))

    def is_scan(self, call: ast.Call) -> bool:
        """Whether a call runs layers one after the other: `jax.lax.scan`, or what `nn.scan` or `nnx.scan` made."""
        is_scan = self.site.resolve(call.func) in _SCANS
        return is_scan or is_lifted_scan(self.site, call.func) or is_nnx_scan(self.site, call.func)

    def refuse_others(self, calls: list[ast.Call], chains: list[ast.Call]) -> NoReturn:
        """Say what to write where there is no scan, and no single `Sequential`."""
        if chains:
            self.refuse("more than one `Sequential` in this statement; give each a statement of its own", chains[1])
        if any(self.site.resolve(call.func) == "functools.reduce" for call in calls):
            self.refuse(
                "`functools.reduce` hides the call of the layer; write `for block in blocks: x = block(x)` and hint "
                "that"
            )
        made = next((call for call in calls if self.site.resolve(call.func) in SEQUENTIALS), None)
        if made is not None:
            self.refuse(
                "a `Sequential` is made here, and its layers run where it is called; hint the statement that calls it, "
                "such as `x = blocks(x)`",
                made,
            )
        nodes = ast.walk(self.site.statement)
        if any(isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp) for node in nodes):
            self.refuse(
                "the layers are made here and called elsewhere; hint the `for` loop that calls them, such as "
                "`for block in self.blocks: x = block(x)`"
            )
        where = (
            f"{KIND_WORDS[FOR]}, or to a statement that calls `jax.lax.scan`, an `nn.scan` module, or a `Sequential` "
            "that this class or function makes"
        )
        self.site.error(f"`stages` cannot stand on {KIND_WORDS[STATEMENT]} without layers; it belongs to {where}")
