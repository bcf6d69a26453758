"""Libraries of which it is known what they do with a mesh in context: nothing."""

from __future__ import annotations

import sys

# fmt: off
# Libraries that neither make arrays of JAX nor look for a mesh.
_PLAIN_LIBRARIES = frozenset(
    (
        "absl", "braceexpand", "click", "clu", "datasets", "einops", "fire", "fsspec", "func_timeout", "gcsfs",
        "google", "grain", "h5py", "huggingface_hub", "hydra", "jsonlines", "lm_dataformat", "lm_eval", "matplotlib",
        "ml_collections", "mlflow", "mlxu", "msgpack", "numpy", "omegaconf", "pandas", "PIL", "psutil", "ray",
        "requests", "rich", "scipy", "sentencepiece", "seqio", "simple_parsing", "sklearn", "smart_open",
        "tensorboardX", "tensorflow", "tensorflow_datasets", "tokenizers", "torch", "tqdm", "transformers",
        "typing_extensions", "wandb", "yaml",
    )
)
# fmt: on

ARRAY_LIBRARIES = frozenset(("jax", "flax", "optax", "haiku", "equinox", "chex", "orbax", "jaxlib", "distrax", "rlax"))


def is_known(qualified: str) -> bool:
    """Whether a name belongs to a library that is known to ignore a mesh in context."""
    root = qualified.partition(".")[0]
    return root in sys.stdlib_module_names or root in _PLAIN_LIBRARIES or root in ARRAY_LIBRARIES or root == "builtins"
