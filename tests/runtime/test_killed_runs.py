"""What `verify` and `plan --entry` have started and made goes with a run that is killed."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs process groups")

# Both processes hold the pipe open, ignore what they can, and write into the folders of the run.
HANGING = """\
import glob
import os
import signal
import time

import jax
import jax.numpy as jnp

# mm: mesh(stage=1)


def layer(x):
    return x + 1


@jax.jit  # mm: mjit
def step(x):
    return layer(x)  # mm: task(stage=0)


def arguments():
    return (jnp.ones(8),)


signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
pipe = os.open({pipe!r}, os.O_WRONLY)
folders = glob.glob(os.path.join(os.environ["TMPDIR"], "mmrewrite-*"))
if os.fork() == 0:
    while True:
        for folder in folders:
            os.close(os.open(os.path.join(folder, str(time.monotonic())), os.O_CREAT))
os.write(pipe, b"%d" % len(folders))
while True:
    jnp.ones(8) @ jnp.ones(8)
"""


@pytest.mark.parametrize(("command", "folders"), [("verify", b"2"), ("plan", b"1")])
def test_nothing_is_left(tmp_path: Path, command: str, folders: bytes) -> None:
    pipe, temporary = tmp_path / "pipe", tmp_path / "temporary"
    os.mkfifo(pipe)
    temporary.mkdir()
    (tmp_path / "train.py").write_text(HANGING.format(pipe=str(pipe)))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    arguments = [command, "train.py", "--entry", "train:step", "--args", "train:arguments", "--devices", "1"]
    run = subprocess.Popen(
        [sys.executable, "-m", "mmrewrite", *arguments],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        assert select.select([reader], [], [], 60)[0]
        assert os.read(reader, 100) == folders
    finally:
        run.send_signal(signal.SIGKILL)
        run.communicate()
    # At its end once no process has it open for writing.
    assert select.select([reader], [], [], 20)[0]
    assert os.read(reader, 100) == b""
    os.close(reader)
    end = time.monotonic() + 20
    while os.listdir(temporary) and time.monotonic() < end:
        time.sleep(0.05)
    assert os.listdir(temporary) == []
