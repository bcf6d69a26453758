"""DualPipe and DualPipe-V: forward and backward of different microbatches run as one program."""

from collections import deque

from mmruntime.schedules._action import Action, Kind, Rows


class _RowWriter:
    """The row of one submesh while it is written: microbatches are counted, weight halves wait in a queue."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.pairs: list[tuple[Action, Action]] = []
        self.waiting: deque[Action] = deque()
        self._following: dict[tuple[bool, int], int] = {}

    def add(self, kind: Kind, stage: int) -> Action:
        turn = (kind == "F", stage)
        action = Action(kind, stage, self._following.get(turn, 0))
        self._following[turn] = action.microbatch + 1
        self.actions.append(action)
        if kind == "I":
            self.waiting.append(Action("W", stage, action.microbatch))
        return action

    def add_pair(self, forward: int, backward: int) -> None:
        self.pairs.append((self.add("F", forward), self.add("B", backward)))

    def add_weights(self) -> None:
        self.actions.append(self.waiting.popleft())


def dualpipe_v(num_submeshes: int, num_microbatches: int) -> tuple[Rows, frozenset[Action]]:
    """DualPipe-V (DeepSeek-V3 report arXiv:2412.19437 and its DualPipe repository), and the first of each fused pair.

    Submesh r of p, with chunk a going up, chunk b coming back, and + for a fused pair, runs

        F a                      2(p - r - 1) times
        F a, F b                 r + 1 times
        I b, W, F b              p - r - 1 times
        F a + B b, F b + B a     m - 2p + r + 1 times
        B b, F b + B a           p - r - 1 times
        B b, B a                 r + 1 times, in halves from the middle on, weight halves later
        W, I a                   p - r - 1 times
        W                        as many as are left

    It needs m >= 2p; with fewer microbatches it is that order without the ones that do not exist. The very first pair
    of the last submesh is not fused: its backward needs an output that the forward need not wait for.
    """
    p, count = num_submeshes, max(num_microbatches, 2 * num_submeshes)
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
    return tuple(rows), frozenset(fused)


def dualpipe(num_submeshes: int, num_microbatches: int) -> tuple[Rows, frozenset[Action]]:
    """DualPipe (DeepSeek-V3 report arXiv:2412.19437, section 3.2.1), and the first of each fused pair.

    The first half of the microbatches goes from submesh 0 to p-1, the second half from submesh p-1 to 0 at the same
    time. So every submesh holds the weights of two stages, r and p-1-r. Submeshes r and p-1-r each run the row that
    submesh r of p/2 has in DualPipe-V, where the chunk going up is the stage next to where its microbatches come in.

    For odd p it is the order for p+1 submeshes with the two in the middle as one: a row of either has each microbatch
    of that stage once. For odd m the second half is one microbatch shorter.
    """
    p, ahead = num_submeshes + num_submeshes % 2, -(-num_microbatches // 2)
    folded, folded_fused = dualpipe_v(p // 2, ahead)
    rows = []
    fused: set[Action] = set()
    for submesh in range(p):
        if p > num_submeshes and submesh == p // 2:
            continue
        in_first_half = submesh < p // 2
        row: list[Action] = []
        opens_pair = False
        for action in folded[min(submesh, p - 1 - submesh)]:
            backwards = (action.stage < p // 2) != in_first_half
            microbatch = action.microbatch + (ahead if backwards else 0)
            stage = action.stage - (p > num_submeshes and action.stage >= p // 2)
            exists = microbatch < num_microbatches
            if exists:
                row.append(Action(action.kind, stage, microbatch))
                if opens_pair:
                    fused.add(row[-2])
            opens_pair = exists and action in folded_fused
        rows.append(tuple(row))
    return tuple(rows), frozenset(fused)
