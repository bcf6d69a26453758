"""Build cases for `score_annotate.py` from releases of public packages: a module of each, hinted, and a training step.

    python validation/score_cases.py FOLDER [--only NAME] [--wheels WHEELS]
    python validation/score_annotate.py FOLDER

Wheels are fetched by pip, or taken from a folder. Of a wheel one module is copied, hints are put at the end of lines
that are named here, and nothing else in it changes; none of its code is in this repository.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STEP = '''
"""A training step of a public model, with hints."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import model as public

# mm: mesh(stage=4, data=2); axes(batch="data")

numbers = np.random.default_rng(0)
{model}
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, eps=1e-3))


def make():
    params = model.init(jax.random.key(0), *inputs)["params"]
    return params, optimizer.init(params), batch


def loss_fn(params, batch):
    {loss}


@jax.jit  # mm: mjit
def step(params, state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)  # mm: microbatch(count=2, schedule="1f1b")
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss


reference = step
'''
TOKENS = """
batch = {"x": numbers.integers(0, 16, (8, 6)), "y": numbers.integers(0, 16, (8, 6))}
"""
TOKEN_LOSS = """
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
"""
LANGUAGE_LOSS = 'logits = model.apply({"params": params}, batch["x"])[0]' + TOKEN_LOSS
SIZES = "num_layers=4, hidden_dim=16, num_heads=2, feedforward_dim=16, dropout=0.1"
LOOP = "        for layer in self.layers:"


@dataclass(frozen=True)
class PublicModel:
    """A model of a public package, and how it is trained.

    Attributes:
        title: What it is.
        release: The package and its version.
        module: The module's place in the wheel.
        hints: What is put behind which lines; every such line gets it.
        model: Source of `model`, of `inputs` for its initialiser, and of `batch`.
        loss: Source of the body of the loss.
        layers: Finds the layer of an array in its path.
        stages: The stage of each layer.
        raises: What the rewritten step raises, if it is right to, as a regular expression.
    """

    title: str
    release: str
    module: str
    hints: Mapping[str, str]
    model: str
    loss: str
    layers: str
    stages: Sequence[int] = (0, 1, 2, 3)
    raises: str | None = None


def language_model(title: str, module: str, call: str, raises: str | None = None) -> PublicModel:
    """A decoder of tokens."""
    return PublicModel(
        title,
        "nanodl==0.0.0",
        f"nanodl/__src/models/{module}.py",
        {LOOP: "  # mm: stages"},
        f"{TOKENS.strip()}\nmodel = public.{call}\ninputs = [batch['x']]",
        LANGUAGE_LOSS,
        "layers_([0-9]+)",
        raises=raises,
    )


VOCABULARY = "vocab_size=16, embed_dim=16"
MODELS = {
    "gpt": language_model("nanodl GPT3, attention maps in lists", "gpt", f"GPT3Decoder({SIZES}, {VOCABULARY})"),
    "llama": language_model(
        "nanodl Llama3, rotary embeddings", "llama", f"Llama3Decoder({SIZES}, num_groups=2, {VOCABULARY})"
    ),
    # It rolls windows along the dimension of examples, which its transposes have put first.
    "mistral": language_model(
        "nanodl Mistral, windows that examples share",
        "mistral",
        f"MistralDecoder({SIZES}, num_groups=2, window_size=2, shift_size=1, {VOCABULARY})",
        raises=r"model\.py:\d+ .*takes some of the examples by their position in the batch",
    ),
    "vit": PublicModel(
        "nanodl ViT",
        "nanodl==0.0.0",
        "nanodl/__src/models/vit.py",
        {LOOP: "  # mm: stages"},
        "batch = {'x': numbers.normal(size=(8, 8, 8, 3)).astype('float32'), 'y': numbers.integers(0, 16, 8)}\n"
        f"model = public.ViTEncoder(patch_size=(4, 4), {SIZES})\ninputs = [batch['x']]",
        'logits = model.apply({"params": params}, batch["x"])[0].mean(axis=1)' + TOKEN_LOSS,
        "layers_([0-9]+)",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=sorted(MODELS), help="name of one case")
    parser.add_argument("--wheels", type=Path, help="a folder with the wheels; fetched if left out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for name, each in MODELS.items():
            if options.only in (None, name):
                build(each, options.folder / name, options.wheels or fetched(each.release, Path(scratch)))
    return 0


def fetched(release: str, folder: Path) -> Path:
    """The folder with the wheel of a release, fetched by pip."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, "--dest", str(folder), release], check=True)
    return folder


def build(model: PublicModel, case: Path, wheels: Path) -> None:
    """Write one case.

    Raises:
        FileNotFoundError: If the wheel is not there.
        ValueError: If a line that is to be hinted is not in the module.
    """
    package, _, version = model.release.partition("==")
    (wheel,) = sorted(wheels.glob(f"{package}-{version}-*.whl")) or [None]
    if wheel is None:
        raise FileNotFoundError(f"no wheel of {model.release} in {wheels}")
    with zipfile.ZipFile(wheel) as archive:
        source = archive.read(model.module).decode()
    lines = source.splitlines()
    for line, hint in model.hints.items():
        if line not in lines:
            raise ValueError(f"{model.module} of {model.release} has no line {line!r}")
        lines = [each + hint if each == line else each for each in lines]
    case.mkdir(parents=True, exist_ok=True)
    (case / "model.py").write_text("\n".join(lines) + "\n")
    (case / "train.py").write_text(STEP.format(model=model.model, loss=model.loss.strip()).lstrip())
    expect = "rewritten" if model.raises is None else "raises"
    refusal = "" if model.raises is None else f"refusal = '{model.raises}'\n"
    (case / "score.toml").write_text(
        f'title = "{model.title}"\nexpect = "{expect}"\n{refusal}run = "train"\nstate = 2\n'
        f'layers = "{model.layers}"\nstages = {list(model.stages)}\n'
    )


if __name__ == "__main__":
    sys.exit(main())
