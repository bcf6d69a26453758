"""Checks on one of the hosts of hosts.sh: `on_host.py CHECK...`; see `checks.several`."""

import os
import sys
import traceback

import mmruntime as mm

mm.init(cpus=2)

from tests.runtime.processes import checks  # noqa: E402

try:
    checks.several(*sys.argv[1:])
except BaseException:
    # At its normal end a process waits for the others, which may be waiting for this one.
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
print("done", flush=True)
