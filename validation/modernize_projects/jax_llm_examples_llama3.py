"""jax-llm-examples, llama3: https://github.com/jax-ml/jax-llm-examples.

`model.py` on a mesh of 2 x 2 x 2 with explicit axes: weights are initialised, a prompt is read and three tokens are
decoded, with plain weights and with quantized ones; and `attention_kernel`, which maps over shards, on arrays that lie
as its specs say. Within the model JAX 0.10 refuses that call, before the rewrite as well, since there they do not.

Stood in for: splash attention on TPUs, by a few lines of `jax.numpy`; reading and writing weights. Kernels for
decoding and for pages, which are stood in for too, are not run. The project follows JAX: give 0.8.1, for which it
was written, as `--mid`. Needs etils.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel
from modernize_projects.support import stand_in

COMMIT = "cf0091a7b7"
PART = "llama3"
JAX = "mid"
EXPECTED = (
    ("out['quantized']", "value", "JAX 0.12 rounds scales in float16 one unit differently, from initialisation on"),
)


def attention(mask, block_sizes):
    """Causal attention of queries `[heads, time, size]` to keys and values `[time, size]` of the same segment."""

    def attend(q, k, v, segment_ids):
        logits = jnp.einsum("htd,sd->hts", q, k).astype(jnp.float32)
        is_seen = jnp.tril(segment_ids.q[:, None] == segment_ids.kv[None, :])
        return jnp.einsum("hts,sd->htd", jax.nn.softmax(jnp.where(is_seen, logits, -1e30)).astype(v.dtype), v)

    return attend


stand_in("jax.experimental.pallas.ops.gpu.paged_attention")
stand_in("jax.experimental.array_serialization.pytree_serialization")
splash_attention_kernel.make_splash_mqa_single_device = attention
from llama3_jax import model  # noqa: E402

mesh = jax.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=(jax.sharding.AxisType.Explicit,) * 3)
plain = model.Config(
    embed=32,
    ffw_size=64,
    q_heads=8,
    kv_heads=4,
    num_layers=2,
    head_dim=8,
    vocab_size=64,
    max_seq_len=16,
    causal=True,
    use_prefill_attn_kernel=False,
    use_decode_attn_kernel=False,
    dtype=jnp.float32,
    mesh=mesh,
    quant_layer=False,
    quant_cache=False,
)
tokens = np.arange(1, 29, dtype=np.int32).reshape(4, 7) * 5 % 64
out = {}
with jax.set_mesh(mesh):
    for name, config in (
        ("plain", plain),
        ("quantized", dataclasses.replace(plain, quant_layer=True, quant_cache=True)),
    ):
        weights = model.Weights.init(jax.random.key(0), config)
        cache = model.KVCache.init(jax.random.key(1), config, 4)
        made = out[name] = {"weights": jax.tree.leaves(weights)}
        next_tokens, logits, cache = model.prefill(tokens, weights, cache, config)
        made["prefill"] = [next_tokens, logits]
        current = next_tokens[:, 6:7]
        for step in range(3):
            current, cache = model.decode_step(current, weights, cache, config)
            made[f"step {step}"] = current
        made["cache"] = jax.tree.leaves(cache)
    numbers = np.random.RandomState(0)

    def placed(value, *axes):
        return jax.device_put(value, model.logical_to_sharding(axes, mesh, plain.rules))

    def normal(heads, axis):
        value = numbers.normal(size=(4, heads, 8, 8)).astype(np.float32)
        return placed(value, "batch", axis, "sequence", "head_dim")

    segments = placed(np.repeat([[1, 1, 1, 1, 1, 2, 2, 2]], 4, 0), "batch", "sequence")
    none = placed(np.zeros(4, np.int32), "batch")
    q, k, v = normal(8, "q_heads"), normal(4, "kv_heads"), normal(4, "kv_heads")
    out["kernel"] = jax.jit(lambda *args: model.attention_kernel(*args, cfg=plain))(
        q, k, v, segments, segments, none, none, none + 8
    )
