"""One of two processes: `python faulty_start.py PROCESS FILE FAULT`, run by test_faults.py.

Process 0 leaves its address in the file, and comes to grief: at once, or with the fault "late" when its watch has been
started. Process 1 connects to that address.
"""

import os
import signal
import sys
import time
from pathlib import Path

from mmruntime._processes import watch
from mmruntime._processes.exchange import Exchange
from mmruntime._processes.progress import progress
from mmruntime._processes.tree import Limits

PROCESS, FILE, FAULT = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]


class OneText(Exchange):
    """Needs no coordinator, with which JAX would end process 1."""

    def __init__(self):
        pass

    def put(self, key, value):
        FILE.write_text(value)
        if FAULT == "late":
            return
        # A child that lives on holds the port open, so that process 1 can still connect.
        if FAULT != "fork" or os.fork():
            os.kill(os.getpid(), signal.SIGSTOP if FAULT == "stop" else signal.SIGKILL)
        # Another thread may take the signal, a moment later.
        time.sleep(60)

    def get(self, key, timeout):
        while not FILE.exists() or not FILE.read_text():
            time.sleep(0.01)
        return FILE.read_text()


watch.own_host = lambda: "127.0.0.1"
# Import may take long on a busy machine.
watch._FIRST_S = 60.0
started = watch.FaultWatch(PROCESS, 2, Limits(1.5), OneText(), progress)
if FAULT == "late" and PROCESS == 0:
    print("connected to", *started._links, flush=True)
    os._exit(1)
time.sleep(60)
