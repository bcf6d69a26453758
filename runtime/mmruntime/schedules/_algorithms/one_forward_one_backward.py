"""Classic 1F1B, also known as PipeDream-Flush: a submesh alternates between forwards and backwards."""

import math

from mmruntime.schedules._costs import Costs
from mmruntime.schedules._named_schedule import ClosedForms, NamedSchedule, Order, ScheduleSizes
from mmruntime.schedules._placements import ANY_PLACEMENT
from mmruntime.schedules._search.list_scheduling import PipelineModel, Policy, hops_to_end, list_schedule


def one_forward_one_backward(sizes: ScheduleSizes) -> Order:
    """1F1B for any placement, as a list schedule.

    A free submesh alternates between a backward and a forward, and runs whichever is ready if only one is. Of several
    ready stages the latest comes first. A stage holds at most as many microbatches as there are submeshes between it
    and the end of the pipeline. With one stage on each submesh this is the textbook order: submesh s of p warms up
    with p - s forwards.
    """
    stages = sizes.num_stages
    pipeline = PipelineModel(
        placement=sizes.placement,
        num_submeshes=sizes.num_submeshes,
        num_microbatches=sizes.num_microbatches,
        # The textbook ratio: a backward takes two matrix products where the forward takes one.
        costs=Costs((1.0,) * stages, (2.0,) * stages, (1.0,) * stages, (1.0,) * stages),
        latency=(0.0,) * stages,
        whole=(1.0,) * stages,
        kept=(1.0,) * stages,
        inputs=(1.0,) * stages,
        memory=(math.inf,) * sizes.num_submeshes,
    )
    return Order(list_schedule(pipeline, Policy(split=False, caps=hops_to_end(sizes.placement), prefer="alternate")))


ONE_FORWARD_ONE_BACKWARD = NamedSchedule(
    name="1f1b",
    rank=20,
    summary="forwards and backwards in turn, so that fewer activations are held",
    # PipeDream (arXiv:1806.03377) had the order first, with stale weights; this is the variant with a flush.
    source="https://arxiv.org/abs/2104.04473",
    order=one_forward_one_backward,
    placements=ANY_PLACEMENT,
    closed_forms=ClosedForms(idle="(p-1)(tF+tB)", live="p"),
)
