"""DualPipe and DualPipe-V: a forward and a backward of different microbatches run as one program.

In one program the communication of either, such as the all-to-all of experts, overlaps with computation of the other.
"""

from collections import deque

from mmruntime.schedules._action import Action, Kind
from mmruntime.schedules._algorithms.one_forward_one_backward import one_forward_one_backward
from mmruntime.schedules._named_schedule import ClosedForms, NamedSchedule, Order, ScheduleSizes
from mmruntime.schedules._placements import V_SHAPED, PlacementRule, v_placement


class _RowWriter:
    """Writes the row of one submesh: counts microbatches, and keeps weight halves in a queue."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.pairs: list[tuple[Action, Action]] = []
        self.waiting: deque[Action] = deque()
        self._following: dict[tuple[bool, int], int] = {}

    def add(self, kind: Kind, stage: int) -> Action:
        """Write the next microbatch of this stage and direction."""
        turn = (kind == "F", stage)
        action = Action(kind, stage, self._following.get(turn, 0))
        self._following[turn] = action.microbatch + 1
        self.actions.append(action)
        if kind == "I":
            self.waiting.append(Action("W", stage, action.microbatch))
        return action

    def add_pair(self, forward: int, backward: int) -> None:
        """Write a fused pair: a forward of one stage and a whole backward of the other."""
        self.pairs.append((self.add("F", forward), self.add("B", backward)))

    def add_weights(self) -> None:
        """Write the weight half that has waited longest."""
        self.actions.append(self.waiting.popleft())


def dualpipe_v(sizes: ScheduleSizes) -> Order:
    """DualPipe-V, the "cut-in-half" schedule of the DualPipe repository: DualPipe without replicas.

    Submesh r of p, with chunk a going up, chunk b coming back, and + for a fused pair, runs

        F a                      2(p - r - 1) times
        F a, F b                 r + 1 times
        I b, W, F b              p - r - 1 times
        F a + B b, F b + B a     m - 2p + r + 1 times
        B b, F b + B a           p - r - 1 times
        B b, B a                 r + 1 times, in halves from the middle on, weight halves later
        W, I a                   p - r - 1 times
        W                        as many as are left

    The pattern needs m >= 2p; with fewer microbatches it is the order for 2p without those that do not exist. The very
    first pair of the last submesh is not fused: the backward needs the forward of chunk b, which needs this forward.
    """
    p, num_microbatches = sizes.num_submeshes, sizes.num_microbatches
    count = max(num_microbatches, 2 * p)
    rows = []
    fused: set[Action] = set()
    for submesh in range(p):
        row = _RowWriter()
        up, back, left = submesh, 2 * p - 1 - submesh, p - 1 - submesh
        for _ in range(2 * left):
            row.add("F", up)
        for _ in range(submesh + 1):
            row.add("F", up)
            row.add("F", back)
        for _ in range(left):
            row.add("I", back)
            row.add_weights()
            row.add("F", back)
        for turn in range(count - 2 * p + submesh + 1):
            if turn == left == 0:
                row.add("F", up)
                row.add("B", back)
            else:
                row.add_pair(up, back)
            row.add_pair(back, up)
        for _ in range(left):
            row.add("B", back)
            row.add_pair(back, up)
        # Halves start at chunk b of the middle turn on odd submeshes, at chunk a of it on even ones.
        for half in range(2 * (submesh + 1)):
            row.add("I" if half > submesh else "B", up if half % 2 else back)
        for _ in range(left):
            row.add_weights()
            row.add("I", up)
        while row.waiting:
            row.add_weights()
        rows.append(tuple(action for action in row.actions if action.microbatch < num_microbatches))
        fused.update(pair[0] for pair in row.pairs if max(pair[0].microbatch, pair[1].microbatch) < num_microbatches)
    return Order(tuple(rows), frozenset(fused))


def dualpipe(sizes: ScheduleSizes) -> Order:
    """DualPipe (DeepSeek-V3 report, arXiv:2412.19437, section 3.2.1).

    The first half of the microbatches goes from submesh 0 to p-1, the second half from submesh p-1 to 0 at the same
    time. So every submesh holds the weights of two stages, r and p-1-r. Submeshes r and p-1-r each run the row that
    submesh r of p/2 has in DualPipe-V: chunk a becomes the stage nearer to the end at which its microbatches enter.

    For odd p it is the order for p+1 submeshes with the two in the middle merged: the row of either has each microbatch
    of that stage once. For odd m the second half is one microbatch shorter.
    """
    num_submeshes, num_microbatches = sizes.num_submeshes, sizes.num_microbatches
    if num_submeshes == 1:
        # One submesh has only one end at which microbatches can enter.
        return one_forward_one_backward(sizes)
    p, ahead = num_submeshes + num_submeshes % 2, -(-num_microbatches // 2)
    half = dualpipe_v(ScheduleSizes(v_placement(p // 2), ahead))
    rows = []
    fused: set[Action] = set()
    for submesh in range(p):
        if p > num_submeshes and submesh == p // 2:
            continue
        in_first_half = submesh < p // 2
        row: list[Action] = []
        opens_pair = False
        for action in half.rows[min(submesh, p - 1 - submesh)]:
            backwards = (action.stage < p // 2) != in_first_half
            microbatch = action.microbatch + (ahead if backwards else 0)
            stage = action.stage - (p > num_submeshes and action.stage >= p // 2)
            exists = microbatch < num_microbatches
            if exists:
                row.append(Action(action.kind, stage, microbatch))
                if opens_pair:
                    fused.add(row[-2])
            opens_pair = exists and action in half.fused
        rows.append(tuple(row))
    replicas: tuple[tuple[int, ...], ...] = ()
    if num_microbatches > 1:
        mirrored = enumerate(reversed(range(num_submeshes)))
        replicas = tuple((mirror,) if mirror != submesh else () for submesh, mirror in mirrored)
    return Order(tuple(rows), frozenset(fused), replicas)


DUALPIPE_V = NamedSchedule(
    name="dualpipe-v",
    rank=110,
    summary="forwards and backwards fused in pairs, in a V",
    source="https://github.com/deepseek-ai/DualPipe",
    order=dualpipe_v,
    placements=V_SHAPED,
    closed_forms=ClosedForms(idle="(p-1)(tF+2tB-3tW)/2", live="p+1/2", only_if=("tF = tI = tW",)),
    splits_backward=True,
)

DUALPIPE = NamedSchedule(
    name="dualpipe",
    rank=120,
    summary="forwards and backwards fused in pairs; microbatches enter at both ends",
    source="https://arxiv.org/abs/2412.19437",
    order=dualpipe,
    placements=PlacementRule(
        lambda num_submeshes, chunks: (*range(num_submeshes),) if chunks == 1 else None,
        "one on each submesh, and each on a second one too",
        needs="one stage on each submesh, such as (0, 1)",
    ),
    closed_forms=ClosedForms(idle="(p/2-1)(tF+2tB-3tW)", live="p+1", only_if=("p and m even", "tF = tI = tW")),
    splits_backward=True,
    has_replicas=True,
)
