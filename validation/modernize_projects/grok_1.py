"""grok-1: https://github.com/xai-org/grok-1.

`runners.py` initialises a model of two layers on a mesh of 1 x 8, and samples six tokens; then the mixture of experts
of `model.py` maps over shards, which it does with quantized weights only. Stood in for: the tokenizer
(`sentencepiece`) and `checkpoint.py`, which reads the published weights. Taken out: the configuration flag
`jax_spmd_mode`, which JAX removed. Needs dm-haiku: 0.0.10 in the old environment, 0.0.17 in the new ones.
"""

import haiku as hk
import jax
import jax.numpy as jnp
from modernize_projects.support import stand_in

COMMIT = "7050ed204b"
EDITS = (("model.py", 'config.update("jax_spmd_mode", "allow_all")', ""),)


class SentencePieceProcessor:
    def __init__(self, model_file=None):
        """The tokens of a text are four numbers, and numbers are their own text."""

    def encode(self, text):
        return [5, 6, 7, 8]

    def decode(self, tokens):
        return str([int(token) for token in tokens])


stand_in("sentencepiece", SentencePieceProcessor=SentencePieceProcessor)
stand_in("checkpoint")
from runners import InferenceRunner, ModelRunner, sample_from_model  # noqa: E402

import model  # noqa: E402

config = model.LanguageModelConfig(
    vocab_size=128,
    pad_token=0,
    eos_token=2,
    sequence_len=32,
    embedding_init_scale=1.0,
    output_multiplier_scale=0.57,
    embedding_multiplier_scale=7.8,
    model=model.TransformerConfig(
        emb_size=64,
        widening_factor=8,
        key_size=8,
        num_q_heads=8,
        num_kv_heads=8,
        num_layers=2,
        attn_output_multiplier=0.35,
        shard_activations=True,
        num_experts=8,
        num_selected_experts=2,
        data_axis="data",
        model_axis="model",
    ),
)
runner = InferenceRunner(
    pad_sizes=(16,),
    runner=ModelRunner(model=config, bs_per_device=0.125, checkpoint_path=""),
    name="local",
    load="",
    tokenizer_path="",
    local_mesh_config=(1, 8),
    between_hosts_config=(1, 1),
)
runner.initialize()
# Without a checkpoint these are a whole state.
runner.params = runner.params.params
text = sample_from_model(runner.run(), "x", max_len=6, temperature=0.01)


def quantized(*_):
    """Weights of the experts, as a checkpoint would have them."""
    key = jax.random.PRNGKey(3)
    weights = {}
    for index, (name, shape) in enumerate(
        {"linear": (8, 64, 32), "linear_v": (8, 64, 32), "linear_1": (8, 32, 64)}.items()
    ):
        weight = jax.random.normal(jax.random.fold_in(key, index), shape)
        weights[name] = {"w": model.QuantizedWeight8bit(weight, jnp.full(shape, 0.5))}
    return weights


model.hk.experimental.transparent_lift = lambda function: quantized
mesh = runner.runner.mesh


def experts(x):
    return model.MoELayer(8, lambda x: x, model.Router(2, mesh=mesh), mesh=mesh)(x, None)


layer = hk.without_apply_rng(hk.transform(experts))
x = jax.random.normal(jax.random.PRNGKey(9), (1, 4, 64))
y = jax.jit(layer.apply)(layer.init(jax.random.PRNGKey(0), x), x)
out = {"text": text, "params": jax.tree_util.tree_leaves(runner.params), "moe": y}
