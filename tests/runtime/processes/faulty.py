"""A program of several processes that comes to grief: `python faulty.py FAULT VICTIM STEP`, run by test_faults.py.

Every process meets all others in every step, in C++ and without a way to interrupt it, as XLA does; it writes down what
it waits for as the runner does. So it needs neither a compilation nor an array.
"""

import atexit
import logging
import os
import signal
import subprocess
import sys
import time

import mmruntime as mm
from mmruntime._processes.exchange import Exchange
from mmruntime._processes.progress import Awaited, CallRecord, Itinerary, Wait, progress

logging.basicConfig(level=logging.WARNING, format="%(message)s")
FAULT, VICTIM = sys.argv[1], int(sys.argv[2])
STEPS = 6
# In front of which step; after the last one, the others are at the exit already; one more, in an exit handler.
AT = int(sys.argv[3])
COUNT = int(os.environ["JAX_NUM_PROCESSES"])


class InPlaceOfAnArray:
    """Comes from the others."""

    here = False

    def is_deleted(self):
        return False

    def is_ready(self):
        return self.here

    def block_until_ready(self):
        return self


def bring_about(fault):
    print("fault", flush=True)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "raise":
        raise ValueError("a bad batch")
    elif fault == "exit":
        sys.exit(3)
    elif fault == "leave":
        os._exit(7)
    elif fault == "loop":
        while True:
            pass
    elif fault == "pipe":
        # Nobody reads the other end.
        _, end = os.pipe()
        os.dup2(end, 1)
        print("x" * 1000000, flush=True)
    elif fault == "slow":
        time.sleep(2 * float(os.environ["MMRUNTIME_FAULT_TIMEOUT"]))
    elif fault == "busy":
        # Plain Python that calls nothing, and ends by itself.
        total = 0
        for number in range(int(4e7 * float(os.environ["MMRUNTIME_FAULT_TIMEOUT"]))):
            total += number
    elif fault == "held":
        # Native code that keeps Python's lock.
        sum(range(int(6e7 * float(os.environ["MMRUNTIME_FAULT_TIMEOUT"]))))
    elif fault == "abort":
        os.abort()
    elif fault == "fork":
        # A child that lives on must not hold the connections open.
        subprocess.Popen(["sleep", "30"], close_fds=False)
        os.kill(os.getpid(), signal.SIGKILL)


def main():
    mm.init()
    exchange = Exchange()
    me = int(os.environ["JAX_PROCESS_ID"])
    awaited = Awaited("float32[16,16] from submesh 1 to submesh 0", ((me + 1) % COUNT,))
    step = Itinerary("step", {1: awaited}, {1: f"task layer{me} forward, microbatch 2"})
    for number in range(STEPS):
        if number == AT and me == VICTIM:
            bring_about(FAULT)
        progress.begin(step, CallRecord("", number + 1, "step", ""))
        progress.index = 1
        wait = Wait(time.monotonic(), progress.call, step, 1, InPlaceOfAnArray())
        progress.waits.append(wait)
        exchange.meet(f"step-{number}", 600)
        wait.array.here = True
        progress.end()
    if AT == STEPS and me == VICTIM:
        time.sleep(0.5)
        bring_about(FAULT)
    if AT > STEPS and me == VICTIM:
        atexit.register(bring_about, FAULT)
    print("done", flush=True)


if __name__ == "__main__":
    main()
