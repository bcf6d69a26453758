"""A process of a job: `child.py module:function rank processes devices coordinator [arguments]`."""

import importlib
import os
import sys
import traceback

os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"

import mmruntime as mm


def main() -> None:
    check, rank, processes, devices, address, *arguments = sys.argv[1:]
    mm.init(cpus=int(devices), coordinator_address=address, num_processes=int(processes), process_id=int(rank))
    module, _, function = check.partition(":")
    try:
        getattr(importlib.import_module(f"tests.runtime.processes.{module}"), function)(*arguments)
    except BaseException:
        # At its normal end a process waits for the others, which may be waiting for this one.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    print("done", flush=True)


if __name__ == "__main__":
    main()
