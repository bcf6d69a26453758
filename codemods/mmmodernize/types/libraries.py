"""Libraries that are known to do nothing with a mesh in context."""

from __future__ import annotations

import ast
import sys

from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Scope, dotted_name

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
# Others whose objects give no mesh: what they call, and what they make, is not known.
# fmt: off
_WITHOUT_MESHES = frozenset(
    (
        "aiofiles", "aiohttp", "aioredis", "apache_beam", "asyncpg", "attr", "azure", "av", "botocore", "cachetools",
        "comet_ml", "contexttimer", "cv2", "dill", "diskcache", "docker", "etcd3", "etils", "fasteners", "filelock",
        "freezegun", "gin", "grpc", "imageio", "kubernetes", "librosa", "lmdb", "mock", "mysql", "neptune", "netCDF4",
        "openpyxl", "paramiko", "pexpect", "plotly", "portalocker", "psycopg", "psycopg2", "pymongo", "pymysql",
        "pynvml", "redis", "s3fs", "seaborn", "socketio", "soundfile", "sqlalchemy", "starlette", "tensorstore",
        "threadpoolctl", "websocket", "websockets", "xarray", "zarr", "zmq",
    )
)
# fmt: on
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
    root = qualified.partition(".")[0]
    return is_plain(qualified) or root in _GIVE_NO_MESH | _WITHOUT_MESHES or qualified.startswith(_OF_FILES)


def library_name(module: ModuleUses, node: ast.expr, scope: Scope | None = None) -> str | None:
    """The full name of an expression, also where its import may fail: `except ImportError: storage = None`.

    An expression that is read out of a text has the scope of the text.
    """
    scope = module.scope_of(node) if scope is None else scope
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
