"""maxdiffusion: https://github.com/AI-Hypercomputer/maxdiffusion, `models/train.py`.

Its own `train(config)`, with the configuration of `configs/base_2_base.yml` and small sizes, takes two steps of a
U-Net of two levels on a mesh of 4 x 2 x 1 (`data`, `fsdp`, `tensor`): replicated by `PositionalSharding`, made by
`max_utils.get_states` with logical axes, compiled in its mesh context, with `shard_map` around flash attention.
Compared are both states at the end (parameters, and the optimizer's moments, which are gradients), the text encoder's
replicated parameters and the loss. JAX 0.6.2 is the old one: the project needs 0.4.23 at least.

Stood in for: weights (random ones), data (random latents), TensorFlow, logging, the estimate of FLOPs, checkpoints, and
the splash attention kernel, which is for accelerators, by plain attention of each shard. Taken out: `jax.spmd_mode`,
which JAX removed. Needs transformers 4.57.6 and pillow in all environments.
"""

import os
from types import SimpleNamespace

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import transformers  # noqa: F401
import yaml
from modernize_projects.support import locals_of, stand_in

COMMIT = "c18fdd2795"
PART = "src"
JAX = "mid"
EDITS = (("maxdiffusion/train_utils.py", "with jax.spmd_mode('allow_all'):", "if True:"),)

for name in (
    "mlperf_logging",
    "tensorboardX",
    "google.cloud.storage",
    "tensorflow.experimental.numpy",
    "safetensors.torch",
):
    stand_in(name)
# Downloads, which the hub's library has renamed.
for name in ("cached_download", "HfFolder"):
    if not hasattr(huggingface_hub, name):
        setattr(huggingface_hub, name, None)
stand_in("maxdiffusion.input_pipeline.input_pipeline_interface", make_pokemon_train_iterator=None)
from maxdiffusion import FlaxAutoencoderKL, FlaxDDPMScheduler, FlaxUNet2DConditionModel, max_utils  # noqa: E402
from maxdiffusion.models import attention_flax, train  # noqa: E402


def plain_attention(mask, head_shards, q_seq_shards, block_sizes):
    """What the kernel computes of one shard, of shape (heads, length, features)."""

    def attend(query, key, value):
        weights = jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", query, key), axis=-1)
        return jnp.einsum("hqk,hkd->hqd", weights, value)

    return attend


attention_flax.splash_attention_kernel = SimpleNamespace(
    make_splash_mha=plain_attention, BlockSizes=attention_flax.splash_attention_kernel.BlockSizes
)
with open("maxdiffusion/configs/base_2_base.yml", encoding="utf-8") as file:
    settings = yaml.safe_load(file)
settings.update(
    activations_dtype=jnp.float32,
    weights_dtype=jnp.float32,
    resolution=8,
    learning_rate=1e-3,
    adam_eps=1e-4,
    learning_rate_schedule_steps=2,
    max_train_steps=2,
    ici_fsdp_parallelism=2,
    enable_profiler=False,
    write_metrics=False,
    output_dir=None,
    checkpoint_dir="",
)
config = SimpleNamespace(**settings)
TEXT = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=8, hidden_size=16))


def loaded(*_, mesh, **given):
    """The models, and random weights for them."""
    unet = FlaxUNet2DConditionModel(
        sample_size=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        block_out_channels=(32, 64),
        layers_per_block=1,
        attention_head_dim=2,
        cross_attention_dim=TEXT.config.hidden_size,
        norm_num_groups=given["norm_num_groups"],
        split_head_dim=given["split_head_dim"],
        attention_kernel=given["attention_kernel"],
        flash_min_seq_length=16,
        mesh=mesh,
    )
    vae = FlaxAutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(32, 32),
        sample_size=8,
    )
    keys = jax.random.split(jax.random.PRNGKey(1), 2)
    weights = {"unet": unet.init_weights(keys[0]), "vae": vae.init_weights(keys[1])}
    weights = max_utils.unbox_logicallypartioned_trainstate(weights)
    weights["text_encoder"] = {"kernel": jnp.arange(32.0).reshape(4, 8), "bias": jnp.arange(8.0)}
    return SimpleNamespace(unet=unet, vae=vae, text_encoder=TEXT, tokenizer=None), weights


def batches(config, mesh, batch_size, *_):
    """Random latents and encoded texts, placed as the input pipeline places them."""
    numbers = np.random.default_rng(0)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*config.data_sharding))

    def next_batch():
        shapes = {"pixel_values": (batch_size, 4, 4, 4), "input_ids": (batch_size, 8, 16)}
        return {
            name: jax.device_put(numbers.normal(size=shape).astype("float32"), sharding)
            for name, shape in shapes.items()
        }

    return next_batch


class Pipeline:
    """Reads the weights, and is made once more to be saved."""

    from_pretrained = staticmethod(loaded)

    def __init__(self, **_):
        self.save_pretrained = None


def scheduler(*_, **__):
    made = FlaxDDPMScheduler()
    return made, made.create_state()


train.FlaxStableDiffusionPipeline = Pipeline
train.FlaxDDPMScheduler = SimpleNamespace(from_pretrained=scheduler)
train.FlaxStableDiffusionSafetyChecker = train.FlaxCLIPTextModel = SimpleNamespace(
    from_pretrained=lambda *_, **__: SimpleNamespace(params={})
)
train.FlaxAutoencoderKL = SimpleNamespace(from_pretrained=lambda *_, **__: (None, {}))
train.CLIPImageProcessor = SimpleNamespace(from_pretrained=lambda *_, **__: None)
train.make_pokemon_train_iterator = batches
train.calculate_unet_tflops = lambda *_, **__: 0.0
train.save_checkpoint = lambda *_: None
max_utils.initialize_summary_writer = lambda config: stand_in("writer")
max_utils.add_config_to_summary_writer = lambda *_: None
os.environ["LIBTPU_INIT_ARGS"] = ""
placed = []
max_utils.device_put_replicated = (lambda place: lambda x, sharding: placed.append(place(x, sharding)) or placed[-1])(
    max_utils.device_put_replicated
)
end = locals_of(train.train, config)

out = {
    "unet": {"params": end["unet_state"].params, "opt_state": jax.tree_util.tree_leaves(end["unet_state"].opt_state)},
    "vae": end["vae_state"].params,
    "replicated": placed,
    "loss": end["train_metric"]["scalar"]["learning/loss"],
    "rngs": end["train_rngs"],
}
