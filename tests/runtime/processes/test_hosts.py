"""Two hosts that share nothing but a cable: other addresses than those of one machine, and a network that fails."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runtime.processes import checks

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
TIMEOUT = 6


@pytest.fixture
def on_two_hosts(tmp_path):
    """Runs a program on both; returns its exit statuses and outputs."""
    if not all(map(shutil.which, ("unshare", "ip"))):
        pytest.skip("needs unshare (util-linux) and ip (iproute2)")
    probe = ["unshare", "--user", "--map-root-user", "--net", "--mount", "ip", "link", "set", "lo", "up"]
    if (found := subprocess.run(probe, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"this machine lends no name spaces: {found.stderr.strip()}")

    def run(cut, *command):
        subprocess.run(
            ["sh", HERE / "hosts.sh", tmp_path, "cut" if cut else "whole", sys.executable, *command],
            timeout=400,
            check=True,
            env={
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": "",
                "MMRUNTIME_FAULT_TIMEOUT": str(TIMEOUT),
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
        )
        return [(int((tmp_path / f"status-{n}").read_text()), (tmp_path / f"{n}").read_text()) for n in range(2)]

    return run


def test_steps_over_two_hosts(on_two_hosts, tmp_path):
    """Stages in each host, and over both with collectives between them; each transport."""
    path = str(tmp_path / "steps.npz")
    checks.save_trained(path)
    calls = ["kinds", f"same_as_saved={path}==1f1b", f"same_as_saved={path}=0,2,1,3=1f1b", "inspected=hosts"]
    calls += ["crossings=20"]
    calls += [f"with_transport={name}=kinds" for name in ("sockets", "collectives")]
    for status, output in on_two_hosts(False, HERE / "on_host.py", *calls):
        assert status == 0, output


def test_a_cable_that_is_pulled(on_two_hosts):
    began = time.monotonic()
    ended = on_two_hosts(True, HERE / "faulty_steps.py", "none", "1", "step", "1")
    took = time.monotonic() - began
    for index, (status, output) in enumerate(ended):
        assert status == 75, output
        other = 1 - index
        said = rf"process {index} of 2 cannot go on: process {other} has said nothing for 4 s: it is stopped, cut off"
        assert re.search(said, output), output
        assert re.search(rf"It has waited for process {other} for \d+\.\d s: call \d+ of train, ", output), output
    assert took < 120, took
