"""What is concluded from who waits for whom, and how it travels, without processes."""

import dis
import json
import random
import re
import socket
import time
import types
from dataclasses import replace

import jax
import pytest

from mmruntime._compat import platform_started
from mmruntime._processes.activity import Activity, _is_endless, _line
from mmruntime._processes.ports import PORTS, allowed_ports, listen
from mmruntime._processes.progress import CallRecord
from mmruntime._processes.tree import FANOUT, Limits, Node, StopReason, children_of, next_hop, parent_of
from mmruntime._processes.waits import CallComparison, ProcessStatus, chain, edges_to, look_into
from mmruntime._processes.watch import _Link, message

LIMITS = Limits(15)


def waits(process, *peers, age=10.0, **more):
    return ProcessStatus(process, peers, f"data of {peers}", age, **more)


def graph(*statuses):
    return {status.process: status for status in statuses}


@pytest.mark.parametrize(
    ("waiting", "known", "culprits", "why"),
    [
        pytest.param([waits(0, 1)], [ProcessStatus(1, left=True)], (1,), "has ended its program", id="left"),
        pytest.param(
            [waits(0, 1), waits(1, 2)], [ProcessStatus(2, stuck="is caught")], (2,), "is caught", id="second_hand"
        ),
        pytest.param([waits(0, 1), waits(1, 0, stuck="is caught")], [], (1,), "is caught", id="waits_too"),
        pytest.param(
            [waits(0, 1, idle=True), waits(1, 2, idle=True), waits(2, 0, idle=True)],
            [],
            (0, 1, 2),
            "wait for each other, and none of them computes: process 0 for data of (1,); process 1 for data of (2,); "
            "process 2 for data of (0,)",
            id="circle",
        ),
        pytest.param([waits(0)], [ProcessStatus(3, left=True)], (3,), "has ended its program", id="for_anybody"),
        pytest.param(
            [waits(0, 1, calls=(CallRecord("g", 9, "train", "x"),))],
            [ProcessStatus(1, left=True, calls=(CallRecord("h", 3, "train", "x"), CallRecord("g", 8, "train", "y")))],
            (1,),
            "has ended its program after 8 calls of steps that they run together, and process 0 has made 9",
            id="left_too_early",
        ),
        pytest.param(
            [waits(0, 1, calls=(CallRecord("g", 1, "train", "x"),))],
            [ProcessStatus(1, left=True, calls=(CallRecord("g", 4, "train", "y"),))],
            (1,),
            "has ended its program after 4 calls of steps that they run together, and process 0 has made 1",
            id="left_with_more_calls",
        ),
    ],
)
def test_who_is_to_blame(waiting, known, culprits, why):
    finding = look_into(0, graph(*waiting), graph(*known), LIMITS.silent)
    assert (finding.culprits, finding.why) == (culprits, why)


def called(*labels, arguments=""):
    return tuple(
        [CallRecord("g", number, label, f"{labels[:number]}", arguments) for number, label in enumerate(labels, 1)]
    )


COMING = CallRecord("g", 4, "train (not as before in the arguments: now x: f32[4], then x: f32[8])", "", agreements=3)


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (called("train", "train"), called("train"), None),
        (
            called("train", "evaluate"),
            called("train", "train"),
            "call 2 .* is evaluate in process 0, and train in process 1",
        ),
        (called("train"), (CallRecord("g", 1, "train", "other"),), "call 1 .* train in both, with other values"),
        (
            called("train", arguments="x: here"),
            (CallRecord("g", 1, "train", "other"),),
            "process 0: x: here; in 1: all",
        ),
        (called("train"), (CallRecord("h", 1, "evaluate", "other"),), None),
    ],
)
def test_different_calls_are_told_apart(one, other, said):
    comparison = CallComparison()
    assert comparison.differing(ProcessStatus(0, calls=one)) is None
    found = comparison.differing(ProcessStatus(1, calls=other))
    assert (found is None) == (said is None)
    if found is not None:
        assert found[0] == (0, 1)
        assert re.search(said, found[1]), found
    again = ProcessStatus.from_json(json.loads(json.dumps(ProcessStatus(1, calls=other).as_json())))
    assert again.calls == other


@pytest.mark.parametrize(
    ("made", "agreements", "differs"),
    [
        pytest.param(4, 2, True, id="made without it"),
        pytest.param(4, 3, False, id="made after it"),
        pytest.param(3, 2, False, id="not made yet"),
        pytest.param(7, 2, True, id="made long ago"),
    ],
)
@pytest.mark.parametrize("first", [0, 1])
def test_a_call_that_one_process_compares_first_is_told_from_one_that_another_has_made(
    made, agreements, differs, first
):
    calls = tuple([CallRecord("g", number, "train", f"{number}", "", agreements) for number in range(1, made + 1)])
    said = [
        ProcessStatus(0, calls=calls),
        # It has made calls of other processes as well.
        ProcessStatus(1, calls=(*calls[:3], CallRecord("h", 4, "pair", "x", "", 0)), coming=COMING),
    ]
    comparison = CallComparison()
    assert comparison.differing(said[first]) is None
    found = comparison.differing(said[1 - first])
    assert (found is not None) == differs
    if found is not None:
        assert found[0] == (0, 1)
        how = (
            r"call 4 .* is train in process 0, and train \(not as before .*\) in process 1, which waits for the others"
        )
        assert re.search(how, found[1]), found
    again = ProcessStatus.from_json(json.loads(json.dumps(said[1].as_json())))
    assert again == said[1]


@pytest.mark.parametrize(
    ("waiting", "known", "slow", "ask"),
    [
        pytest.param([waits(0, 1)], [], None, (1,), id="nothing_known"),
        pytest.param([waits(0, 1)], [ProcessStatus(1, doing="at a checkpoint")], 1, (), id="busy"),
        pytest.param([waits(0, 1), waits(1, 2)], [ProcessStatus(2)], 2, (), id="second_hand"),
        # One of them computes, or has waited for a moment only: it may be a long program of the device.
        pytest.param([waits(0, 1, idle=True), waits(1, 0)], [], None, (), id="computes"),
        pytest.param([waits(0, 1, idle=True), waits(1, 0, idle=True, age=5)], [], None, (), id="young"),
        pytest.param([waits(0)], [], 0, (), id="for_anybody"),
    ],
)
def test_who_is_not(waiting, known, slow, ask):
    finding = look_into(0, graph(*waiting), graph(*known), LIMITS.silent)
    assert (finding.culprits, finding.slow, finding.ask) == ((), slow, ask)


def test_chains_lead_to_the_culprit():
    waiting = graph(waits(0, 1), waits(1, 2), waits(2, 3), waits(5, 0), waits(6, 5, 4))
    edges = edges_to((3,), waiting)
    assert edges == {2: 3, 1: 2, 0: 1, 5: 0, 6: 5}
    assert chain(6, (5, 4), edges, (3,)) == [6, 5, 0, 1, 2, 3]
    # A process that was not asked knows for whom it waits itself.
    assert chain(9, (8, 5), edges, (3,)) == [9, 5, 0, 1, 2, 3]
    assert chain(9, (3,), {}, (3,)) == [9, 3]
    assert chain(9, (8,), {}, (3,)) == [9, 8]
    assert len(edges_to((0,), graph(*(waits(process, process - 1) for process in range(1, 1000))))) == 64


def test_the_message():
    verdict = StopReason((3,), "has died", "lost", {0: 1, 1: 3})
    status = waits(0, 1, age=2.34, doing="in call 5 of step, at train.py:7 in main")
    assert message(verdict, status, 4) == (
        "mmruntime: process 0 of 4 cannot go on: process 3 has died.\n"
        "mmruntime: It has waited for process 1 for 2.3 s: data of (1,).\n"
        "mmruntime: Who waits for whom: 0 -> 1 -> 3.\n"
        "mmruntime: It is in call 5 of step, at train.py:7 in main.\n"
    )
    assert "process 3 of 4 cannot go on: it has died." in message(verdict, ProcessStatus(3), 4)
    assert "cannot go on: processes 1, 2 wait" in message(StopReason((1, 2), "wait", "stuck"), ProcessStatus(0), 4)


@pytest.mark.parametrize("sent", [b"0\n", b"[]\n", b'"hello"\n', b"GET / HTTP/1.1\r\n", b"\xff\xfe\n", b"{}\n1\n"])
def test_a_stranger_is_not_listened_to(sent):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        link = _Link(ours, None)
        theirs.sendall(b'{"kind": "beat"}\n{"kind"')
        assert link.receive() == [{"kind": "beat"}]
        theirs.sendall(b': "beat"}\n')
        assert link.receive() == [{"kind": "beat"}]
        theirs.sendall(sent)
        assert link.receive() is None


class Network:
    """All processes in one, with messages that take random times and keep their order on each connection."""

    def __init__(self, count, limits=LIMITS, delay=0.01, seed=0):
        self.random, self.delay, self.now = random.Random(seed), delay, 0.0
        self.statuses = [ProcessStatus(process) for process in range(count)]
        self.sent, self.received, self.warnings = [0] * count, [0] * count, []
        self.inboxes = [[] for _ in range(count)]
        self.dead, self.deaf = set(), set()
        self.nodes = [
            Node(process, count, limits, self._sender(process), self._teller(process), self.warnings.append)
            for process in range(count)
        ]
        for process in range(1, count):
            self.nodes[process].connected(parent_of(process))
            self.nodes[parent_of(process)].connected(process)
        self.limits = limits

    def _sender(self, process):
        def send(peer, sent):
            self.sent[process] += 1
            self.inboxes[peer].append((process, sent))

        return send

    def _teller(self, process):
        return lambda: self.statuses[process]

    def kill(self, process):
        self.dead.add(process)
        for peer in [parent_of(process), *self.nodes[process].children]:
            if peer is not None:
                self.nodes[peer].disconnected(process, self.now)

    def deliver(self):
        """All messages, and those sent because of them; processes take turns in random order."""
        hops = 0
        while any(self.inboxes):
            hops += 1
            order = [process for process, inbox in enumerate(self.inboxes) if inbox]
            self.random.shuffle(order)
            inboxes, self.inboxes = self.inboxes, [[] for _ in self.inboxes]
            for process in order:
                if process in self.dead | self.deaf:
                    continue
                for peer, sent in inboxes[process]:
                    if peer not in self.dead:
                        self.received[process] += 1
                        self.nodes[process].received(peer, sent, self.now)
        return hops

    def tick(self):
        self.now += self.limits.beat
        for process, node in enumerate(self.nodes):
            if process not in self.dead | self.deaf and node.verdict is None:
                for peer in node.tick(self.limits.beat, self.now):
                    node.lost(peer, "has said nothing", self.now)
        return self.deliver()

    def age(self, seconds):
        for process, status in enumerate(self.statuses):
            if status.wait:
                self.statuses[process] = replace(status, age=status.age + seconds)

    def verdicts(self):
        return [node.verdict for process, node in enumerate(self.nodes) if process not in self.dead | self.deaf]


@pytest.mark.parametrize("count", [2, 3, 17, 18, 300])
@pytest.mark.parametrize("fault", ["kill", "silence"])
def test_one_is_lost_and_all_know(count, fault):
    for victim in sorted({0, 1, min(16, count - 1), count // 2, count - 1}):
        network = Network(count, seed=victim)
        network.tick()
        network.kill(victim) if fault == "kill" else network.deaf.add(victim)
        network.deliver()
        while None in network.verdicts():
            network.tick()
            assert network.now < LIMITS.total
        assert {verdict.culprits for verdict in network.verdicts()} == {(victim,)}


def test_the_chain_of_waits_comes_with_the_verdict():
    network = Network(20)
    for process in range(5):
        network.statuses[process] = waits(process, process + 1, age=0.1)
    network.kill(5)
    network.deliver()
    while None in network.verdicts():
        network.tick()
    verdict = network.nodes[0].verdict
    assert chain(0, (1,), verdict.edges, verdict.culprits) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("culprit", [3, 40])
def test_a_wait_that_cannot_end_is_found(culprit):
    network = Network(50)
    network.statuses[0], network.statuses[20] = waits(0, 20, age=0), waits(20, culprit, age=0)
    network.statuses[culprit] = ProcessStatus(culprit, stuck="is caught")
    while None in network.verdicts():
        network.age(LIMITS.beat)
        network.tick()
        assert network.now < LIMITS.total
    assert network.nodes[7].verdict.why == "is caught"
    assert network.nodes[7].verdict.edges == {20: culprit, 0: 20}


def test_another_call_than_the_one_that_a_process_waits_for_is_found_as_soon_as_the_wait_is_told():
    """Also where the other process reads no results, and so waits for nobody."""
    network = Network(50)
    network.statuses[30] = ProcessStatus(30, calls=(CallRecord("g", 4, "train", "x", agreements=2),))
    network.statuses[20] = waits(20, 30, age=0, coming=COMING)
    while None in network.verdicts():
        network.age(LIMITS.beat)
        network.tick()
        assert network.now < LIMITS.judge
    assert {verdict.culprits for verdict in network.verdicts()} == {(20, 30)}


def test_a_process_that_has_left_is_not_asked_what_it_has_called():
    """It has told how many calls it made, and would be compared with itself."""
    network = Network(5)
    calls = called(*["train"] * 9)
    network.nodes[3].leave(calls[-1:], network.now)
    network.deliver()
    network.statuses[3] = ProcessStatus(3, left=True, calls=calls)
    network.statuses[1] = waits(1, 3, age=0, calls=called(*["train"] * 10))
    while None in network.verdicts():
        network.age(LIMITS.beat)
        network.tick()
        assert network.now < LIMITS.total
    (why,) = {verdict.why for verdict in network.verdicts()}
    assert why == "has ended its program after 9 calls of steps that they run together, and process 1 has made 10"


def test_slow_processes_are_warned_about_once_in_a_while():
    network = Network(20)
    network.statuses[1] = waits(1, 2, age=0)
    network.statuses[2] = ProcessStatus(2, doing="compiling")
    for _ in range(90):
        network.age(LIMITS.beat)
        network.tick()
    assert set(network.verdicts()) == {None}
    assert len(network.warnings) == 2 and "process 2 is compiling. That may just take its time" in network.warnings[0]
    # A wait that has ended is forgotten.
    network.statuses[1] = ProcessStatus(1)
    for _ in range(90):
        network.tick()
    assert len(network.warnings) == 2


def test_a_cause_is_better_than_its_effects():
    network = Network(20)
    network.nodes[2].fail("has ended with JaxRuntimeError: recv() failed", network.now, of_transport=True)
    network.deliver()
    network.kill(19)
    network.deliver()
    while None in network.verdicts():
        network.tick()
    assert {(verdict.culprits, verdict.rank) for verdict in network.verdicts()} == {((19,), "lost")}


def test_the_end_is_reached_together():
    network = Network(40)
    for process in range(39):
        network.nodes[process].leave((), network.now)
        network.tick()
        assert not any(node.over for node in network.nodes)
    network.nodes[39].leave((), network.now)
    network.deliver()
    assert all(node.over for node in network.nodes)


@pytest.mark.parametrize("unequal", [0, 7, 39])
def test_unequal_numbers_of_equal_calls_are_found_at_the_end(unequal):
    network = Network(40)
    for process, node in enumerate(network.nodes):
        # Of another group not all processes are members.
        own = (CallRecord("pair", 5, "step", "x"),) if process < 2 else ()
        node.leave((*called(*["train"] * (60 - (process == unequal)))[-1:], *own), network.now)
    network.deliver()
    while None in network.verdicts():
        network.tick()
    (why,) = {verdict.why for verdict in network.verdicts()}
    assert re.search(rf"have made different numbers of calls .*process {unequal} made 59, the last of train", why), why


def test_sixteen_thousand_processes():
    """Messages for each process do not grow with their number, and a verdict needs a few hops."""
    count = 16384
    network = Network(count, Limits(15))
    network.tick()
    # One beat to each neighbour, and an inner process has 17.
    assert max(network.sent) == max(network.received) == FANOUT + 1
    before = list(network.received)
    network.kill(count - 1)
    network.deliver()
    hops = 0
    while None in network.verdicts():
        hops = max(hops, network.tick())
    assert network.now <= 4 and hops <= 5
    # Process 0 alone hears of all others, once, in the second before the verdict.
    gained = [after - earlier for after, earlier in zip(network.received, before, strict=True)]
    assert gained[0] <= count + 4 * FANOUT and sorted(gained)[-(FANOUT + 2)] <= count / FANOUT + 200
    assert sorted(gained)[count // 2] <= 10


def test_the_tree_is_one():
    for count in (1, 2, 16, 17, 18, 273, 274, 1000):
        found = [child for process in range(count) for child in children_of(process, count)]
        assert found == list(range(1, count))
        assert all(process in children_of(parent_of(process), count) for process in range(1, count))
    assert next_hop(0, 300) == 1 and next_hop(1, 300) == 18 and next_hop(18, 300) == 300


def test_the_platform_is_known_without_a_lock():
    """It comes from a private name, without which the watch would take every platform for an accelerator."""
    platform = jax.default_backend()
    assert platform_started() == platform


def test_what_the_main_thread_does():
    activity = Activity(loop=0.05, output=10)
    activity.look()
    assert activity.stuck == ""
    assert "in test_what_the_main_thread_does" in activity.words("before its first step")
    began = time.perf_counter()
    for _ in range(100):
        activity.look()
    # A look a second costs less than a thousandth of the time.
    assert (time.perf_counter() - began) / 100 < 1e-3


LOOPS = {
    "while True: pass": True,
    "while True: x = 1": True,
    "while True:\n  if x: y = 1\n  else: y = 2": True,
    "while True: x += 1": True,
    "while True:\n  if x: break": False,
    "while True:\n  x += 1\n  if x > 9: return": False,
    "while True: x = y[z]": False,
    "while True: x = y.z": False,
    "while True: x()": False,
    "while True: yield x": False,
    "while True:\n  if x: continue\n  if y: raise x": False,
    "for z in y: x += z": False,
    "for z in y:\n  if z: continue\n  x = z": False,
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_is_endless_if_nothing_leaves_it(loop):
    body = "\n".join(f"    {line}" for line in loop.splitlines())
    found = {}
    exec(f"def function(x, y, z):\n{body}\n", found)
    code = found["function"].__code__
    ends = [each.offset for each in dis.get_instructions(code) if each.opname.startswith("JUMP_BACKWARD")]
    assert ends
    for end in ends:
        frame = types.SimpleNamespace(f_code=code, f_lasti=end, f_lineno=None)
        assert _is_endless(frame) == LOOPS[loop]
        assert re.search(r":[1-9]\d* in function$", _line(frame))


def test_ports():
    with listen({}) as first:
        port = first.getsockname()[1]
        with pytest.raises(OSError, match=rf"no port of {PORTS} is free"):
            listen({PORTS: f"{port}-{port}"})
    assert list(allowed_ports({PORTS: "40000-40002"})) == [40000, 40001, 40002]
    for wrong in ("40000", "5-4", "0-1", "1-70000", "a-b"):
        with pytest.raises(ValueError, match=rf"{PORTS} must be a range of ports such as .*, got '{wrong}'"):
            allowed_ports({PORTS: wrong})
