"""Recomputation of an order that does not fit: forwards that run once more, right before their backward passes."""

from mmruntime.schedules._action import Action, Rows
from mmruntime.schedules._search.list_scheduling import PipelineModel


def recompute_where_full(rows: Rows, pipeline: PipelineModel) -> Rows:
    """The rows, with a forward run once more for each microbatch whose activations found no memory.

    The earlier ones keep their activations, in as much memory as the largest forward leaves that runs once more. The
    result may still be too large: an order with more microbatches in flight than there is memory for their inputs.
    """
    able = set(pipeline.recomputable)
    return tuple(_row(row, pipeline, memory, able) for row, memory in zip(rows, pipeline.memory, strict=True))


def _row(row: tuple[Action, ...], pipeline: PipelineModel, memory: float, able: set[int]) -> tuple[Action, ...]:
    whole, kept, inputs = pipeline.whole, pipeline.kept, pipeline.inputs
    more = max((whole[action.stage] - inputs[action.stage] for action in row if action.stage in able), default=0.0)
    live = 0.0
    waiting: set[tuple[int, int]] = set()
    result: list[Action] = []
    for action in row:
        stage, key = action.stage, (action.stage, action.microbatch)
        if action.kind == "F":
            if stage in able and live + whole[stage] > memory - more + 1e-9:
                waiting.add(key)
                live += inputs[stage]
            else:
                live += whole[stage]
        elif action.kind == "W":
            live -= kept[stage]
        else:
            if key in waiting:
                result.append(Action("R", stage, action.microbatch))
                live += whole[stage] - inputs[stage]
            live -= whole[stage] - (kept[stage] if action.kind == "I" else 0.0)
        result.append(action)
    return tuple(result)
