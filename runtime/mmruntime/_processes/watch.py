"""Watch: see that all processes end when one of them has died, stopped, failed, left, or is caught in a loop.

JAX itself waits for ever, for minutes, or aborts without a name. A thread of each process keeps the connections of the
`tree`, and tells it what the main thread waits for. When it comes to a verdict, the thread says so and ends the
process: what waits inside of XLA cannot be interrupted.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import logging
import math
import os
import queue
import re
import secrets
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import jax

from mmruntime import _compat
from mmruntime._processes.activity import Activity
from mmruntime._processes.exchange import Exchange, own_host
from mmruntime._processes.ports import listen
from mmruntime._processes.progress import Blocked, Progress, Wait, progress
from mmruntime._processes.tree import Limits, Message, Node, StopReason, parent_of
from mmruntime._processes.waits import ProcessStatus, chain

log = logging.getLogger("mmruntime")

# EX_TEMPFAIL: another process is to blame, and starting again may help.
PEER_FAILED = 75
# Seconds for a neighbour to connect, and for output to be written before the end.
_CONNECT_S = 60.0
_FLUSH_S = 1.0
# Seconds that the start of the program waits for the connections.
_FIRST_S = 10.0
# Of the text of an error, as much of its beginning and of its end is told.
_SHOWN = 300
# Linux's letters for the state of a process that has ended.
_DEAD = ("Z", "X")

_watch: FaultWatch | None = None


def start_watch(timeout: float) -> None:
    """Watch over the processes of `jax.distributed`, unless that is done already, or there is one process.

    Args:
        timeout: Seconds within which all end when one cannot go on. With 0 nothing is watched.
    """
    global _watch
    process, count = _compat.process_index_and_count()
    if _watch is None and timeout > 0 and count > 1:
        _watch = FaultWatch(process, count, Limits(timeout), Exchange(), progress)


def seconds_to_end() -> float:
    """Within which the watch says why and ends this process, once another one cannot go on; 0 if nothing watches."""
    return 0.0 if _watch is None else _watch.seconds_to_end()


class FaultWatch:
    """The thread of one process, and what the main thread tells it.

    Args:
        process: The index of this process.
        count: How many there are.
        limits: The time limits.
        exchange: Where processes leave their addresses.
        progress: Where this process is in its steps.
    """

    def __init__(self, process: int, count: int, limits: Limits, exchange: Exchange, progress: Progress) -> None:
        self._process, self._count, self._limits = process, count, limits
        self._exchange, self._progress = exchange, progress
        self._activity = Activity(limits.silent, limits.judge)
        self._node = Node(process, count, limits, self._send, self._status, self._say)
        self._links: dict[int, _Link] = {}
        self._selector = selectors.DefaultSelector()
        # What the main thread has to tell, and the socket that wakes the thread for it.
        self._told: queue.SimpleQueue[Callable[[float], None]] = queue.SimpleQueue()
        self._wakes, self._waker = socket.socketpair()
        self._released = threading.Event()
        self._connected = threading.Event()
        # When a silent neighbour was last said to live.
        self._said_alive: dict[int, float] = {}
        self._failed_program = False
        # The status of a program that ended with an exception.
        self._exit_status: int | None = None
        self._pid = os.getpid()
        _delay_abort()
        self._old_hook = sys.excepthook
        sys.excepthook = self._note_exception
        atexit.register(self._at_exit)
        os.register_at_fork(after_in_child=self._forget)
        self._writer = _Writer()
        threading.Thread(target=self._run, name="mmruntime-watch", daemon=True).start()
        # A process that dies before the others know of it would not be missed; and after process 0 has died or stopped,
        # nobody learns where to connect.
        self._connected.wait(_FIRST_S)

    # In the main thread.

    def seconds_to_end(self) -> float:
        """See the function."""
        return 0.0 if self._released.is_set() else self._limits.total

    def _note_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Show an exception that ends the program, and tell the others."""
        self._old_hook(kind, error, trace)
        if os.getpid() == self._pid and not self._released.is_set():
            interrupted = isinstance(error, KeyboardInterrupt)
            self._exit_status = 128 + signal.SIGINT if interrupted else 1
            text = " ".join(str(error).split())
            why = f"has ended with {kind.__name__}{': ' if text else ''}{text[:300]}"
            # XLA's errors begin with the name of a status, whatever their class.
            of_transport = bool(re.match(r"[A-Z_]{4,}: ", text)) or isinstance(error, jax.errors.JaxRuntimeError)
            self._tell(lambda now: self._node.fail(why, now, of_transport=of_transport))

    def _at_exit(self) -> None:
        """Wait for the others: what JAX does at the end of a program waits for them too, and cannot be watched."""
        if os.getpid() != self._pid:
            return
        if self._exit_status is None:
            calls = tuple(self._progress.last.values())
            self._tell(lambda now: self._node.leave(calls, now))
        self._released.wait()

    def _tell(self, what: Callable[[float], None]) -> None:
        self._told.put(what)
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    def _forget(self) -> None:
        """In a forked child: the connections are the parent's, and must end with it."""
        self._released.set()
        for link in self._links.values():
            link.socket.close()

    # In the thread of the watch.

    def _run(self) -> None:
        try:
            self._connect()
            self._note_connected()
            self._watch()
        except Exception:
            # A watch that fails must not take a program with it that runs.
            log.warning(
                "The watch over other processes has failed; from here on nothing tells whether they live.",
                exc_info=True,
            )
        finally:
            self._connected.set()
            self._released.set()

    def _connect(self) -> None:
        """Connect to the parent, and let the children connect."""
        self._wakes.setblocking(False)
        self._selector.register(self._wakes, selectors.EVENT_READ)
        token = secrets.token_hex(8)
        if self._node.children:
            listener = listen()
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, token)
            # With its place, so that those who connect can see what became of this process before it says anything.
            address = [own_host(), listener.getsockname()[1], token, _place()]
            self._exchange.put(f"watch/{self._process}", json.dumps(address))
        parent = parent_of(self._process)
        if parent is None:
            return
        host, port, token, place = json.loads(self._exchange.get(f"watch/{parent}", _CONNECT_S))
        try:
            connection = socket.create_connection((host, port), timeout=_CONNECT_S / 2)
        except OSError as error:
            if _state(place) in _DEAD:
                self._node.lost(parent, "has died", time.monotonic())
                return
            self._say(
                f"process {self._process} cannot reach process {parent} at {host}:{port} ({error}), so it will not see "
                "when others fail. Open the ports between the hosts; MMRUNTIME_PORTS=40000-40031 says which to use."
            )
            return
        link = self._add(connection, parent)
        link.place = place
        link.send({"kind": "hello", "process": self._process, "token": token, "place": _place()})

    def _note_connected(self) -> None:
        """Let the program start once all children are there."""
        if all(child in self._links for child in self._node.children):
            self._connected.set()

    def _add(self, connection: socket.socket, peer: int | None) -> _Link:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(connection, peer)
        self._selector.register(connection, selectors.EVENT_READ, link)
        if peer is not None:
            self._links[peer] = link
            self._node.connected(peer)
        return link

    def _watch(self) -> None:
        """Listen and tick until it is over."""
        beat = self._limits.beat
        ticked = time.monotonic()
        while not self._node.over and self._node.verdict is None:
            for key, _ in self._selector.select(max(0.0, ticked + beat - time.monotonic())):
                self._read(key)
            now = time.monotonic()
            while not self._told.empty():
                self._told.get()(now)
            if now - ticked >= beat:
                # This process may have been stopped or very busy: then it was not able to listen, and nobody is silent.
                elapsed, ticked = min(now - ticked, 2 * beat), now
                self._activity.look()
                self._look_for_failures(now)
                self._look_for_the_end(now)
                for peer in self._node.tick(elapsed, now):
                    self._look_at(peer, now)
        if self._node.verdict is not None:
            self._end(self._node.verdict)
        self._flush_links(time.monotonic() + self._limits.collect)

    def _look_for_failures(self, now: float) -> None:
        """Tell the others of a program of this process that failed, where they wait for what it computes.

        It may have failed because they did, so that any other cause comes first.
        """
        found = None if self._failed_program else self._progress.failed_offer(self._limits.report)
        if found is not None:
            offer, error = found
            self._failed_program = True
            label, task = offer.itinerary.label, offer.itinerary.tasks.get(offer.index, "its scalar results")
            text = " ".join(str(error).split())
            if len(text) > 2 * _SHOWN:
                text = f"{text[:_SHOWN]} ... {text[-_SHOWN:]}"
            why = f"has a program that failed, in call {offer.call} of {label}, and with it {task}: {text}"
            self._node.fail(why, now, of_transport=True)

    def _look_for_the_end(self, now: float) -> None:
        """Tell the others that the program has ended while Python still waits for its threads, before any exit handler.

        Such as that of a checkpoint, which waits for all processes to write theirs.
        """
        main = threading.main_thread()
        if main.is_alive() or self._node.has_left or self._exit_status is not None:
            return
        # Another thread may run the steps, and go on.
        if self._progress.thread == main.ident:
            self._node.leave(tuple(self._progress.last.values()), now)

    def _read(self, key: selectors.SelectorKey) -> None:
        found: Any = key.fileobj
        if key.data is None:
            with contextlib.suppress(BlockingIOError):
                found.recv(4096)
        elif isinstance(key.data, str):
            with contextlib.suppress(OSError):
                self._add(found.accept()[0], None)
        else:
            self._hear(key.data, key.data.receive())

    def _hear(self, link: _Link, messages: list[Message] | None) -> None:
        now = time.monotonic()
        if messages is None:
            self._drop(link, now)
            return
        for message in messages:
            if link.peer is not None:
                self._node.received(link.peer, message, now)
            elif message.get("kind") == "hello" and str(message.get("token")) in self._tokens():
                link.peer, link.place = message["process"], message["place"]
                self._links[message["process"]] = link
                self._node.connected(message["process"])
                self._note_connected()
            else:
                # A stranger.
                self._drop(link, now)
                return

    def _tokens(self) -> set[str]:
        return {key.data for key in self._selector.get_map().values() if isinstance(key.data, str)}

    def _drop(self, link: _Link, now: float) -> None:
        self._selector.unregister(link.socket)
        link.socket.close()
        if link.peer is not None and self._links.pop(link.peer, None) is not None:
            self._node.disconnected(link.peer, now)

    def _look_at(self, peer: int, now: float) -> None:
        """A neighbour says nothing; on the same machine it can be seen why."""
        silent = f"for {self._limits.silent:.0f} s"
        state = _state(self._links[peer].place) if peer in self._links else None
        if state is None:
            why = f"has said nothing {silent}: it is stopped, cut off, or in native code that keeps Python's lock"
            self._node.lost(peer, why, now)
        elif state in "Tt":
            self._node.lost(peer, f"is stopped (by SIGSTOP or a debugger), and has said nothing {silent}", now)
        elif state in _DEAD:
            self._node.lost(peer, "has died", now)
        else:
            self._node.heard(peer)
            if now - self._said_alive.get(peer, -math.inf) > self._limits.warn:
                self._said_alive[peer] = now
                self._say(
                    f"process {peer} has said nothing {silent}, but lives: native code keeps Python's lock there."
                )

    def _send(self, peer: int, message: Message) -> None:
        link = self._links.get(peer)
        if link is not None:
            link.send(message)

    def _status(self) -> ProcessStatus:
        """What this process says of itself."""
        now, current = time.monotonic(), self._progress
        wait, blocked = current.oldest(), current.blocked
        itinerary = current.itinerary
        where = "before its first step" if itinerary is None else f"{{}} call {current.call} of {itinerary.label}"
        where = where.format("in" if current.inside else "after")
        awaited: tuple[float, tuple[int, ...], str] | None = None
        if wait is not None:
            awaited = wait.since, wait.awaited.processes, _wait_in_words(wait)
        if blocked is not None and (awaited is None or blocked.since < awaited[0]):
            awaited = blocked.since, blocked.processes, _block_in_words(blocked, current)
        since, processes, words = awaited or (now, (), "")
        on_cpu = _compat.platform_started() == "cpu"
        return ProcessStatus(
            self._process,
            tuple(process for process in processes if process != self._process),
            words,
            now - since,
            self._activity.words(where),
            self._activity.stuck,
            on_cpu and self._activity.idle(min(now - since, self._limits.judge)),
            self._node.has_left,
            tuple(current.last.values()) if self._node.has_left else current.latest_calls(),
            None if blocked is None else blocked.coming,
        )

    def _say(self, sentence: str) -> None:
        log.warning("mmruntime: %s", sentence)

    def _end(self, verdict: StopReason) -> None:
        """Say why this process cannot go on, see the verdict off to the others, and end it."""
        status = self._status()
        to_blame = self._process in verdict.culprits or verdict.rank == "failed"
        # As it is now: what the others' end makes the main thread raise meanwhile is no cause.
        own_status = self._exit_status if to_blame else None
        # An exception has been shown already, and says why, unless it is what became of another one's end.
        if own_status is None:
            text = message(verdict, status, self._count)
            # Even where somebody holds the lock of `sys.stderr`.
            self._writer.do(lambda: os.write(2, text.encode()))
        # Process 0 goes last, since JAX ends all others when it goes.
        self._flush_links(time.monotonic() + max(2.0, 3 * self._limits.collect))
        self._writer.do(_flush)
        failed = self._failed_program and self._process in verdict.culprits
        os._exit(own_status if own_status is not None else 1 if failed else PEER_FAILED)

    def _flush_links(self, until: float) -> None:
        """Send what is left to send, and wait until the children have gone."""
        while time.monotonic() < until:
            children = [self._links[child] for child in self._node.children if child in self._links]
            pending = [link for link in self._links.values() if not link.flush()]
            if not pending and (self._node.verdict is None or not children):
                return
            for key, _ in self._selector.select(0.05):
                if not isinstance(key.data, _Link):
                    # Nobody is let in any more, and it would be ready in every turn.
                    self._selector.unregister(key.fileobj)
                elif key.data.receive() is None:
                    self._drop(key.data, time.monotonic())


class _Link:
    """A connection that sends and receives JSON objects, a line for each, and never waits."""

    def __init__(self, connection: socket.socket, peer: int | None) -> None:
        self.socket, self.peer = connection, peer
        # The machine and the number of the process at the other end.
        self.place: list[Any] | None = None
        self._rest = b""
        self._outgoing = b""

    def send(self, message: Message) -> None:
        self._outgoing += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> bool:
        """Send what is left; whether nothing is."""
        try:
            while self._outgoing:
                self._outgoing = self._outgoing[self.socket.send(self._outgoing) :]
        except BlockingIOError:
            return False
        except OSError:
            # The reader will see the end of the connection.
            self._outgoing = b""
        return True

    def receive(self) -> list[Message] | None:
        """The messages that have come; None at the end of the connection."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            messages = [json.loads(line) for line in lines]
        except ValueError:
            return None
        # Whoever looks for open ports may send anything.
        return messages if all(isinstance(message, dict) for message in messages) else None


def message(verdict: StopReason, status: ProcessStatus, count: int) -> str:
    """What a process says before it ends.

    Args:
        verdict: Why it does.
        status: What it knows of itself.
        count: How many processes there are.
    """
    culprits = verdict.culprits
    named = f"process {culprits[0]}" if len(culprits) == 1 else f"processes {', '.join(map(str, culprits))}"
    if culprits == (status.process,):
        named = "it"
    lines = [f"process {status.process} of {count} cannot go on: {named} {verdict.why}."]
    if status.wait:
        peers = ", ".join(map(str, status.waits_for))
        whom = f" for process{'es' if len(status.waits_for) > 1 else ''} {peers}" if peers else ""
        lines.append(f"It has waited{whom} for {status.age:.1f} s: {status.wait}.")
        way = chain(status.process, status.waits_for, verdict.edges, culprits)
        if len(way) > 1:
            lines.append(f"Who waits for whom: {' -> '.join(map(str, way))}.")
    lines.append(f"It is {status.doing}.")
    return "".join(f"mmruntime: {line}\n" for line in lines)


def _wait_in_words(wait: Wait) -> str:
    task = wait.itinerary.tasks.get(wait.index)
    what = wait.awaited.what
    words = what if task is None or task in what else f"{task}: {what}"
    return f"call {wait.call} of {wait.itinerary.label}, {words}"


def _block_in_words(blocked: Blocked, current: Progress) -> str:
    """What the thread waits for: what its current instruction awaits, if it is at one."""
    itinerary, index = current.itinerary, current.index
    awaited = itinerary.awaited.get(index) if current.inside and itinerary is not None else None
    if itinerary is None or awaited is None or not set(blocked.processes) <= set(awaited.processes):
        return blocked.what
    return _wait_in_words(Wait(blocked.since, current.call, itinerary, index, None))


def _place() -> list[Any]:
    """This machine, with its name spaces of processes and of networks, and the number of this process there.

    Of one in another network it would say nothing that it lives: it may be cut off all the same.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            machine = file.read().strip()
        spaces = " ".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net"))
        return [machine, spaces, os.getpid()]
    except OSError:
        return ["", "", os.getpid()]


def _state(place: list[Any] | None) -> str | None:
    """The state of a process on this machine, as a letter of Linux; None if it is elsewhere or cannot be seen."""
    if place is None or not place[0] or place[:2] != _place()[:2]:
        return None
    try:
        with open(f"/proc/{int(place[2])}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"
    except OSError:
        return None


def _delay_abort() -> None:
    """Have an abort take six seconds, so that the watch can say why it happens.

    When process 0 ends, JAX aborts all others at once, and names nobody. It calls no Python for that (its callback
    cannot convert its own argument). A handler in C can wait, and the abort goes on once it returns: `sleep`, called
    with the number of the signal. A handler of somebody else, such as `faulthandler`'s, stays.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.signal.restype = ctypes.c_void_p
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        before = libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))
        if before:
            libc.signal(signal.SIGABRT, before)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


class _Writer:
    """A thread that does what may block, such as to write where nobody reads.

    It is started early, because none can be started while the interpreter ends.
    """

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[tuple[Callable[[], object], threading.Event]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="mmruntime-writer", daemon=True).start()

    def do(self, act: Callable[[], object]) -> None:
        """Do something, and do not wait for it for long."""
        done = threading.Event()
        self._todo.put((act, done))
        done.wait(_FLUSH_S)

    def _run(self) -> None:
        while True:
            act, done = self._todo.get()
            with contextlib.suppress(Exception):
                act()
            done.set()
