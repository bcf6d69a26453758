"""Libraries of which it is known what they do with a mesh in context: nothing."""

from __future__ import annotations

import ast
import sys

from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import dotted_name

# fmt: off
# Libraries that neither make arrays of JAX nor look for a mesh.
_PLAIN_LIBRARIES = frozenset(
    (
        "absl", "boto3", "braceexpand", "click", "cloud_tpu_diagnostics", "clu", "datasets", "einops", "fastapi",
        "fire", "flask", "fsspec", "func_timeout", "gcsfs", "google", "gradio", "grain", "h5py", "httpx",
        "huggingface_hub", "hydra", "jsonlines", "lm_dataformat", "lm_eval", "loguru", "matplotlib", "ml_collections",
        "mlflow", "mlxu", "msgpack", "numpy", "omegaconf", "orjson", "pandas", "PIL", "psutil", "pyarrow", "pydantic",
        "pyglove", "pytest", "ray", "requests", "rich", "scipy", "sentencepiece", "seqio", "simple_parsing", "sklearn",
        "smart_open", "streamlit", "tabulate", "tensorboardX", "tensorflow", "tensorflow_datasets", "termcolor",
        "tiktoken", "tokenizers", "torch", "tqdm", "transformers", "typing_extensions", "uvicorn", "wandb", "yaml",
        "zstandard",
    )
)
# fmt: on

ARRAY_LIBRARIES = frozenset(
    ("jax", "flax", "optax", "haiku", "equinox", "chex", "orbax", "jaxlib", "distrax", "rlax", "treescope")
)

# Those that make arrays, and whose objects give no mesh.
_GIVE_NO_MESH = frozenset(("chex", "optax", "orbax", "treescope"))
# Modules of Python's library whose objects give nothing that a program put into them.
_OF_FILES = ("io.", "logging.", "pathlib.", "subprocess.", "tarfile.", "tempfile.", "zipfile.")


def is_known(qualified: str) -> bool:
    """Whether a name belongs to a library that is known to ignore a mesh in context."""
    root = qualified.partition(".")[0]
    return root in sys.stdlib_module_names or root in _PLAIN_LIBRARIES or root in ARRAY_LIBRARIES or root == "builtins"


def is_plain(qualified: str) -> bool:
    """Whether a name belongs to a library that neither makes arrays of JAX nor looks for a mesh."""
    return qualified.partition(".")[0] in _PLAIN_LIBRARIES


def gives_no_mesh(qualified: str) -> bool:
    """Whether a name belongs to a library whose objects have no method that gives a mesh."""
    return is_plain(qualified) or qualified.partition(".")[0] in _GIVE_NO_MESH or qualified.startswith(_OF_FILES)


def library_name(module: ModuleUses, node: ast.expr) -> str | None:
    """The full name of an expression, also where its import may fail: `except ImportError: storage = None`."""
    scope = module.scope_of(node)
    found = module.facts.names.resolve(node, scope)
    dotted = dotted_name(node)
    if found is not None or dotted is None:
        return found
    first, _, rest = dotted.partition(".")
    owner = scope.owner(first)
    bindings = [each for each in owner.bindings[first] if not is_none(each.value)] if owner is not None else []
    if len(bindings) != 1 or bindings[0].kind != "import" or bindings[0].target is None:
        return None
    home = module.facts.names.follow(bindings[0].target)
    return f"{home}.{rest}" if rest else home


def is_none(value: ast.expr | None) -> bool:
    """Whether a value is `None` as written."""
    return isinstance(value, ast.Constant) and value.value is None
