"""Text picture of a simulated step."""

import math

from mmruntime.schedules._schedule import Schedule
from mmruntime.schedules._simulate import Simulation, simulate

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def draw(what: Schedule | Simulation, *, width: int = 120) -> str:
    """The step as text: a line for each submesh, time from left to right, and live activations below.

    An action is as wide as it takes long and shows its kind and microbatch as far as they fit; dots are idle time.
    Kinds are F (forward), B (whole backward), I (input half), W (weight half), R (forward once more); lower-case
    letters are every other stage of a submesh that has several. The lines below count the microbatches that each
    submesh holds, all its stages together, in one digit: a is 10, z is 35 or more.

    Args:
        what: A simulation, or a schedule, which is then simulated with all costs 1.
        width: Most characters of a line of the timeline.

    Raises:
        TypeError: If `what` is neither.
    """
    simulation = simulate(what) if isinstance(what, Schedule) else what
    if not isinstance(simulation, Simulation):
        raise TypeError(f"draw: expected a Schedule, or a Simulation as simulate() returns it; got {what!r}.")
    schedule = simulation.schedule
    shortest = min((event.end - event.start for event in simulation.timeline if event.end > event.start), default=1.0)
    label = len(str(schedule.num_microbatches - 1)) + 1
    span = simulation.makespan or 1.0
    # Wide enough for every label, within the width of a line. The shortest action gets a whole number of characters if
    # it gets one at all, so that equal actions look equal.
    scale = min((label + 1) / shortest, width / span)
    if scale * shortest >= 1:
        scale = math.floor(scale * shortest) / shortest
    length = max(1, round(span * scale))
    lines = [
        f"{schedule.name}: {schedule.num_submeshes} submeshes, {schedule.num_stages} stages, "
        f"{schedule.num_microbatches} microbatches; time {simulation.step_time:g}, idle "
        f"{simulation.bubble_fraction:.1%}"
    ]
    margin = len(f"submesh {schedule.num_submeshes - 1} ")
    odd = schedule.odd_stages
    live_lines = []
    for submesh, row in enumerate(schedule.rows):
        picture, live = ["."] * length, [0] * length
        held = filled = 0
        for action, start, end in zip(row, simulation.starts[submesh], simulation.ends[submesh], strict=True):
            first, last = round(start * scale), round(end * scale)
            kind = action.kind.lower() if action.stage in odd else action.kind
            text = f"{kind}{action.microbatch}" if last - first >= label else kind
            for column in range(first, min(last, length)):
                picture[column] = text[column - first] if column - first < len(text) else " "
            live[filled:first] = [held] * (first - filled)
            again = (action.stage, action.microbatch) in schedule.recomputed
            held += action.kind == ("R" if again else "F")
            live[first:last] = [held] * (last - first)
            filled = last
            held -= action.kind in "BW"
        live[filled:length] = [held] * (length - filled)
        lines.append(f"{f'submesh {submesh}':<{margin}}|{''.join(picture)}|")
        digits = "".join(_DIGITS[min(count, len(_DIGITS) - 1)] for count in live[:length])
        live_lines.append(f"{f'live {submesh}':<{margin}}|{digits}| peak {simulation.live[submesh]:g}")
    axis = f"{'':<{margin}} 0{simulation.makespan:>{max(1, length - 1)}.6g}"
    return "\n".join([*lines, axis, *live_lines])
