"""swarm-jax: https://github.com/kingoflolz/swarm-jax, of January 2021.

Its embedding, two reversible layers and its projection, each on eight devices by `pmap`: initialised, run forward and
backward, quantized between them as the project does, and updated once by Adam. Stood in for: `ray`, whose decorators
hand classes through. Called directly: what the threads of `run` call. Replaced in both: sizes. Needs dm-haiku.
"""

import random
import warnings

import numpy as np
import optax
from modernize_projects.support import lasting, stand_in

COMMIT = "62cd943ba3"
SELECT = ("replace_pmap",)
EDITS = (
    ("swarm_jax/model.py", "num_heads=8", "num_heads=2"),
    ("swarm_jax/model.py", "key_size=128", "key_size=2"),
    # Donated twice, which old JAX did not see on CPUs.
    ("swarm_jax/embedding_layer.py", "(obs, (e, e),", "(obs, (e, e + 0),"),
)
EXPECTED = (
    ("out['from the", "lies", "what is computed from results of `pmap` lies on all devices now"),
    ("out['from the layers']['[0][1][2]']", "value", "XLA converts 65536.0 to uint16 otherwise"),
)
# What `pmap` gives is committed to its devices today, so `jit` takes it beside nothing that lies on one of them alone.
BY_HAND = (
    ("swarm_jax/swarm_layer.py", 'opt_jit(state["grad_acc"]', 'opt_jit(jax.device_get(state["grad_acc"])'),
    ("swarm_jax/swarm_layer.py", 'state["params"],\n', 'jax.device_get(state["params"]),\n'),
)

# Its first call of the loss, which only compiles it, has targets that are no integers.
warnings.filterwarnings("ignore", message="jax.nn.one_hot input should be integer")
stand_in("ray", remote=lambda **_: lambda made: made, method=lambda **_: lambda made: made)
from swarm_jax import embedding_layer, model, reversible_layer, swarm_layer  # noqa: E402

calls = {}


def at_once(state, forward_queue, backward_queue, size, forward, backward):
    """Keep both functions, with the state that the thread would have."""
    calls["forward"], calls["backward"] = forward, backward


for layers in (embedding_layer, reversible_layer):
    layers.run_threads = at_once
    layers.print = lambda *_: None


def started(layer):
    """A layer, and what its thread would call."""
    layer.run()
    return layer, calls["forward"], calls["backward"]


random.seed(5)
numbers = np.random.RandomState(0)
tokens = numbers.randint(0, 12, (8, 2, 6))
targets = numbers.randint(0, 12, (8, 2, 6))
precision = swarm_layer.NetworkPrecision(fwd_act="float32", rev_act="uint16", grad="float16")
optimizer = optax.chain(optax.scale(1 / 4), optax.adam(1e-2, eps=1e-3))

embedding, embed, embed_back = started(embedding_layer.EmbeddingLayer(tokens, 12, 8, optimizer, precision))
hidden = embed(tokens, embedding.state)
reversible = []
for index in range(2):
    layer, forward, backward = started(
        reversible_layer.ReversibleLayer(model.char_layer_init, index, hidden, optimizer, precision)
    )
    reversible.append((layer, backward))
    hidden = forward(hidden, layer.state)
projection, project, project_back = started(embedding_layer.ProjLayer(hidden, 12, 8, optimizer, 4.0, precision))
out = {"hidden": lasting(hidden), "logits": project(hidden, projection.state)}
y_dy, loss = project_back(hidden, targets, projection.state)
out["loss"], out["from the projection"] = loss, lasting(y_dy)
for layer, backward in reversed(reversible):
    y_dy = backward(y_dy, layer.state)
out["from the layers"] = lasting(y_dy)
out["embedding"] = embed_back(y_dy, tokens, embedding.state)
for name, layer in (("embedding", embedding), *zip(("first", "second"), (pair[0] for pair in reversible))):
    out[f"gradients of {name}"] = lasting(layer.state["grad_acc"])
    layer.opt()
    out[f"state of {name}"] = lasting({key: layer.state[key] for key in ("params", "opt_state", "grad_acc")})
projection.opt()
out["projection"] = lasting(projection.state["params"])
