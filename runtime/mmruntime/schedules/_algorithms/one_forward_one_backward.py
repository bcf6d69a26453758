"""Classic 1F1B."""

import math
from collections.abc import Sequence

from mmruntime.schedules._action import Rows
from mmruntime.schedules._costs import Costs
from mmruntime.schedules._list_scheduling import PipelineModel, Policy, hops_to_end, list_schedule


def one_forward_one_backward(placement: Sequence[int], num_submeshes: int, num_microbatches: int) -> Rows:
    """Classic 1F1B (arXiv:1806.03377, arXiv:2104.04473) for any placement.

    A free submesh takes turns between a backward and a forward, of its latest stage that has one ready, and takes
    what there is if only one is ready. A stage holds no more activations than there are submeshes to pass from it to
    the end. On one stage for each submesh this is the textbook order: submesh s of p warms up with p - s forwards.
    Forwards cost 1 here, backwards 2.
    """
    stages = len(placement)
    pipeline = PipelineModel(
        placement=tuple(placement),
        num_submeshes=num_submeshes,
        num_microbatches=num_microbatches,
        costs=Costs((1.0,) * stages, (2.0,) * stages, (1.0,) * stages, (1.0,) * stages),
        latency=(0.0,) * stages,
        whole=(1.0,) * stages,
        kept=(1.0,) * stages,
        memory=(math.inf,) * num_submeshes,
    )
    return list_schedule(pipeline, Policy(split=False, caps=hops_to_end(placement), prefer="alternate"))
