"""Training steps that come to grief: `python faulty_steps.py FAULT VICTIM WHEN READ [FOLDER]`, run by test_faults.py.

WHEN is in the life of the victim: while it traces or compiles, in front of a step, within one, while all save a
checkpoint in FOLDER, as soon as that call has returned and Orbax writes, or at the end of the program. Losses are read
every READ steps; never with 0. With `placed` for WHEN, all arrays lie where the step wants them, so that only a number
that it does not read tells one call from another; with `equal` that number is constant.
"""

import os
import signal
import sys
import threading
import time

import mmruntime as mm

mm.init()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

FAULT, VICTIM, WHEN, READ = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
HERE = int(os.environ["JAX_PROCESS_ID"]) == VICTIM


def bring_about():
    print("fault", flush=True)
    if FAULT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif FAULT == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif FAULT == "raise":
        raise ValueError("a bad batch")
    elif FAULT == "exit":
        sys.exit(3)
    elif FAULT == "loop":
        while True:
            pass


def layer(w, x):
    if HERE and WHEN == "trace":
        bring_about()
    return jnp.tanh(x @ w)


def loss_fn(ws, batch):
    x = batch["x"]
    for index, w in enumerate(ws):
        x = mm.task(layer, task=mm.stage(index, 4))(w, x)
    return ((x - batch["y"]) ** 2).mean()


def train(ws, batch, number):
    loss, grads = mm.microbatch(jax.value_and_grad(loss_fn), argnum=1, count=4, reduce="exact", schedule="1f1b")(
        ws, batch
    )
    return [w - 0.1 * g for w, g in zip(ws, grads, strict=True)], loss, batch


mesh = mm.MultiMesh(axis_sizes=(jax.device_count(),), axis_names=("stage",))
step = mm.mjit(train, mesh=mesh, donate_argnums=0)
state = [np.eye(16, dtype=np.float32) for _ in range(4)]
batch = {name: np.ones((16, 16), np.float32) for name in "xy"}
if HERE and WHEN == "compile":
    step.plan(state, batch, 0)
    threading.Timer(0.1, bring_about).start()
if WHEN in ("saving", "saved"):
    import orbax.checkpoint as ocp

    import mmruntime.orbax

    mmruntime.orbax.register()
    manager = ocp.CheckpointManager(sys.argv[5])
placed = batch
for number in range(60):
    if HERE and number == 20:
        if WHEN == "step":
            bring_about()
        elif WHEN == "within":
            threading.Timer(0.002, bring_about).start()
    if number == 20 and WHEN in ("saving", "saved"):
        if HERE and WHEN == "saving":
            threading.Timer(0.02, bring_about).start()
        manager.save(number, args=ocp.args.StandardSave(state))
        if HERE and WHEN == "saved":
            bring_about()
    batch = placed if WHEN in ("placed", "equal") else {name: np.full((16, 16), number, np.float32) for name in "xy"}
    if HERE and FAULT in ("skip", "repeat") and number == 20:
        print("fault", flush=True)
        if FAULT == "skip":
            continue
        state, loss, placed = step(state, batch, number * (WHEN != "equal"))
    state, loss, placed = step(state, batch, number * (WHEN != "equal"))
    if READ and number % READ == 0:
        float(loss)
if HERE and WHEN == "end":
    time.sleep(0.5)
    bring_about()
print("done", flush=True)
