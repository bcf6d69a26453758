"""What the watch over faults reads of a process, and what processes read of each other."""

import itertools
import math

import jax
import pytest

from mmruntime._processes.exchange import Exchange
from mmruntime._processes.progress import Awaited, CallRecord, Itinerary, Progress, Wait


class Arriving:
    """Stands for an array that has not come yet."""

    def __init__(self, ready=False, deleted=False, failed=False):
        self.ready, self.deleted, self.failed = ready, deleted, failed

    def is_ready(self):
        if self.deleted:
            raise RuntimeError("Array has been deleted.")
        return self.ready

    def block_until_ready(self):
        if self.failed:
            raise ValueError("Connection closed")

    def is_deleted(self):
        return self.deleted


STEP = Itinerary("train", {3: Awaited("float32[2] from submesh 1 to submesh 0", (1,))})


def test_the_oldest_wait_is_the_first_that_is_not_over():
    progress = Progress()
    assert progress.oldest() is None
    arrays = [Arriving(ready=True), Arriving(deleted=True), Arriving(), Arriving()]
    for number, array in enumerate(arrays):
        progress.waits.append(Wait(float(number), 1, STEP, 3, array))
    oldest = progress.oldest()
    assert oldest is not None
    assert oldest.array is arrays[2]
    assert oldest.awaited.processes == (1,)
    assert len(progress.waits) == 2
    arrays[2].ready = arrays[3].ready = True
    assert progress.oldest() is None
    assert not progress.waits


def test_what_has_failed_is_awaited_in_vain():
    progress = Progress()
    for array in (Arriving(ready=True), Arriving(ready=True, failed=True), Arriving(ready=True)):
        progress.waits.append(Wait(0.0, 1, STEP, 3, array))
    assert progress.oldest() is not None and progress.oldest().array.failed


def test_what_others_wait_for_in_vain_is_told_once_it_has_failed():
    progress = Progress()
    late = Arriving(failed=True)
    for array in (Arriving(ready=True), late, Arriving(deleted=True, failed=True)):
        progress.offers.append(Wait(0.0, 1, STEP, 3, array))
    assert progress.failed_offer(math.inf) is None
    assert not progress.offers
    late.ready = True
    offer, error = progress.failed_offer(math.inf)
    assert (offer.array, str(error)) == (late, "Connection closed")
    assert progress.failed_offer(math.inf) is None


def test_what_fails_after_something_of_another_process_has_its_cause_there():
    progress = Progress()
    received, own = Arriving(ready=True, failed=True), Arriving(ready=True, failed=True)
    progress.waits.append(Wait(0.0, 2, STEP, 3, received))
    progress.offers.append(Wait(0.0, 2, STEP, 5, own))
    assert progress.failed_offer(math.inf) is None
    for call, index in ((1, 5), (2, 1)):
        progress.offers.append(Wait(0.0, call, STEP, index, own))
        assert progress.failed_offer(math.inf) is not None


def test_what_fails_before_it_is_known_what_came_from_others_is_told_later():
    progress = Progress()
    # What is received late is issued behind instructions that are later in the one order.
    behind, before, own = Arriving(), Arriving(), Arriving(ready=True, failed=True)
    progress.waits += [Wait(0.0, 1, STEP, 8, behind), Wait(0.0, 1, STEP, 3, before)]
    progress.offers.append(Wait(0.0, 1, STEP, 5, own))
    assert progress.failed_offer(math.inf) is None
    own.deleted = True
    assert progress.failed_offer(math.inf) is None
    before.ready = True
    offer, error = progress.failed_offer(math.inf)
    assert (offer.array, str(error)) == (own, "Connection closed")
    assert progress.failed_offer(0.0) is None


def test_what_nobody_else_accounts_for_is_told_in_the_end():
    """A process whose message is lost on the way has no program that failed."""
    progress = Progress()
    progress.waits.append(Wait(0.0, 1, STEP, 3, Arriving(ready=True, failed=True)))
    progress.offers.append(Wait(0.0, 1, STEP, 5, Arriving(ready=True, failed=True)))
    assert progress.failed_offer(math.inf) is None
    assert progress.failed_offer(0.0) is not None


@pytest.mark.parametrize("is_donated", [False, True])
def test_of_a_chain_of_processes_the_first_that_failed_says_so(is_donated):
    """Whatever order the failures are seen in, from 0 to 1 to 2 and its scalar result."""
    for order in itertools.permutations(range(5)):
        chain = [Progress() for _ in range(3)]
        sent = [Arriving(failed=True) for _ in chain]
        received = [Arriving(failed=True) for _ in chain[1:]]
        for me, progress in enumerate(chain):
            if me:
                progress.waits.append(Wait(0.0, 1, STEP, me, received[me - 1]))
            progress.offers.append(Wait(0.0, 1, STEP, me + 1, sent[me]))
        told = []
        for event in order:
            (sent + received)[event].ready = True
            told += [me for me, progress in enumerate(chain) if progress.failed_offer(math.inf) is not None]
            for array in sent:
                array.deleted = is_donated and array.ready
        assert told == [0], order


def test_calls_are_counted_and_remembered():
    progress = Progress()
    for number in range(100):
        progress.begin(STEP, CallRecord("01", number + 1, "train", f"token {number}"))
        assert progress.inside
        progress.end()
    assert progress.call == 100
    assert [record.number for record in progress.calls] == list(range(69, 101))
    assert progress.calls[-1].token == "token 99"
    assert progress.latest_calls() == tuple(progress.calls)
    progress.begin(STEP, CallRecord("01", 101, "train", ""))
    progress.fail(ValueError("no"))
    assert not progress.inside
    assert progress.failure == "ValueError: no"


def test_what_blocks_the_thread_is_said_while_it_does():
    progress = Progress()
    with progress.waiting("outer", (1, 2)):
        with pytest.raises(KeyError), progress.waiting("inner"):
            assert progress.blocked is not None
            assert progress.blocked.what == "inner"
            raise KeyError
        assert progress.blocked is not None
        assert progress.blocked.processes == (1, 2)
    assert progress.blocked is None


class Store:
    """The key-value store of `jax.distributed`, for one process; errors as seen with JAX 0.10 and 0.12."""

    def __init__(self):
        self.texts = {}
        self.asked = 0

    def key_value_set(self, key, value):
        if key in self.texts:
            raise jax.errors.JaxRuntimeError(f"ALREADY_EXISTS: key {key} already exists.")
        self.texts[key] = value

    def blocking_key_value_get(self, key, timeout_in_ms):
        self.asked += 1
        if key not in self.texts:
            raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: GetKeyValue() timed out with key: {key}")
        return self.texts[key]

    def key_value_try_get(self, key):
        if key not in self.texts:
            raise jax.errors.JaxRuntimeError(f"NOT_FOUND: Config key {key} not found.")
        return self.texts[key]

    def key_value_dir_get(self, key):
        return [(found, value) for found, value in self.texts.items() if found.startswith(key)]

    def key_value_delete(self, key):
        self.texts = {found: value for found, value in self.texts.items() if not f"{found}/".startswith(f"{key}/")}

    def wait_at_barrier(self, barrier_id, timeout_in_ms, process_ids=None):
        raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: Barrier timed out.")


def test_texts_are_left_under_names_of_their_own():
    store = Store()
    exchange = Exchange(store)
    exchange.put("at/0", "here")
    with pytest.raises(jax.errors.JaxRuntimeError, match="ALREADY_EXISTS"):
        exchange.put("at/0", "there")
    exchange.put("at/1", "too")
    exchange.put("attic/1", "other")
    assert store.texts["mmruntime/at/0"] == "here"
    assert exchange.get("at/0", 1) == exchange.look("at/0") == "here"
    assert exchange.folder("at") == {"0": "here", "1": "too"}
    exchange.drop("at")
    assert exchange.look("at/0") is None
    assert exchange.folder("attic") == {"1": "other"}


def test_waiting_for_a_text_ends_and_is_cut_into_turns():
    store = Store()
    with pytest.raises(TimeoutError, match="nothing under 'plan/1' after 12 s"):
        Exchange(store).get("plan/1", 12)
    assert store.asked == 3
    with pytest.raises(jax.errors.JaxRuntimeError, match="DEADLINE"):
        Exchange(store).meet("compiled", 1)


def test_without_processes_there_is_no_exchange():
    with pytest.raises(RuntimeError, match=r"not initialised in this process. Call mm.init"):
        Exchange()
