"""Advice that is a hint: what a refusal says to write is written, and the refusal is gone."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from fixture_files import FIXTURES, hint_cases, source_files

from mmrewrite.codemod.registry import Registry
from mmrewrite.directives.schedule_names import IN_TURNS, OF_THE_V
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.results import Refusal, Rewrite

REGISTRY = Registry()
# A hint to paste: `microbatch(size=2, argnum=(1, 2))`, and nothing to fill in.
ADVICE = re.compile(r"write `(?:# mm: )?((\w+)\([^`]*\))`")
CONSEQUENCE = "left as it is"

HEAD = """import functools

import jax
import jax.numpy as jnp
from flax import nnx
import equinox as eqx

# mm: mesh(stage=2)


def model(w, x, key=None):
    for a in w:  # mm: stages
        x = jnp.tanh(x @ a)
    return x


def of_two(w, x, y):
    return jnp.mean((model(w, x) - y) ** 2)


def of_key(w, x, y, key):
    return of_two(w, x, y) + jax.random.normal(key)


def of_keys(w, x, y, keys):
    return of_two(w, x * jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, x.shape[1:]))(keys), y)


def of_rngs(model, rngs, batch):
    return jnp.mean(model(batch, rngs=rngs))


"""
# Each is refused for one hint, and says all that it lacks.
PROGRAMS = {
    "two arguments": """
        @jax.jit  # mm: mjit
        def step(w, x, y):
            return jax.grad(of_two)(w, x, y)  # mm: microbatch(size=2)
    """,
    "two keywords": """
        @jax.jit  # mm: mjit
        def step(w, x, y):
            return jax.grad(of_two)(w, x=x, y=y)  # mm: microbatch(size=2)
    """,
    "one of each": """
        @jax.jit  # mm: mjit
        def step(w, x, y):
            return jax.grad(of_two)(w, x, y=y)  # mm: microbatch(size=2, schedule="1f1b")
    """,
    "closed over": """
        @jax.jit  # mm: mjit
        def step(w, x, y):
            def loss(w):
                return of_two(w, x, y)

            grad_fn = jax.value_and_grad(loss)
            return grad_fn(w)  # mm: microbatch(count=2)
    """,
    "closed over by a lambda": """
        @jax.jit  # mm: mjit
        def step(w, x, y):
            return jax.grad(lambda w: of_two(w, x, y))(w)  # mm: microbatch(size=2)
    """,
    "batch and key": """
        @jax.jit  # mm: mjit
        def step(w, x, y, key):
            key = jax.random.fold_in(key, 3)
            return jax.grad(of_key)(w, x, y, key)  # mm: microbatch(size=2)
    """,
    "key by keyword": """
        @jax.jit  # mm: mjit
        def step(w, batch, key):
            return jax.grad(of_key)(w, batch["x"], batch["y"], key=key)  # mm: microbatch(size=2)
    """,
    "key closed over": """
        @jax.jit  # mm: mjit
        def step(w, x, y, key):
            dropout_key, key = jax.random.split(key)

            def loss(w):
                return of_key(w, x, y, dropout_key)

            return jax.value_and_grad(loss)(w)  # mm: microbatch(size=2)
    """,
    "keys of examples closed over": """
        @jax.jit  # mm: mjit
        def step(w, x, y, key):
            keys = jax.random.split(key, x.shape[0])

            def loss(w):
                return of_keys(w, x, y, keys)

            return jax.value_and_grad(loss)(w)  # mm: microbatch(size=2)
    """,
    "keys of examples beside a batch": """
        @jax.jit  # mm: mjit
        def step(w, x, key):
            n = len(x)
            keys = jax.random.split(key, num=n)

            def loss(w, x):
                return of_keys(w, x, x, keys)

            return jax.grad(loss)(w, x)  # mm: microbatch(size=2)
    """,
    "keys of examples passed": """
        @jax.jit  # mm: mjit
        def step(w, x, y, key):
            return jax.grad(of_keys)(w, x, y, jax.random.split(key, len(x)))  # mm: microbatch(size=2)
    """,
    "streams of nnx": """
        @nnx.jit  # mm: mjit
        def step(model, optimizer, rngs, batch):
            loss, grads = nnx.value_and_grad(of_rngs)(model, rngs, batch)  # mm: microbatch(size=2)
            optimizer.update(model, grads)
    """,
    "state of nnx": """
        @nnx.jit  # mm: mjit
        def step(w, x, y):
            grad_fn = nnx.value_and_grad(of_two, argnums=nnx.DiffState(0, nnx.Param))
            return grad_fn(w, x, y)  # mm: microbatch(size=2)
    """,
    "of Equinox": """
        @eqx.filter_value_and_grad
        def loss(w, x, y, key):
            return of_key(w, x, y, key)

        @eqx.filter_jit  # mm: mjit
        def step(w, x, y, key):
            return loss(w, x, y, key)  # mm: microbatch(size=2)
    """,
    "mapped": """
        @functools.partial(jax.pmap, axis_name="devices")  # mm: mjit
        def step(w, x, y, key):
            return jax.lax.pmean(jax.grad(of_key)(w, x, y, key), "devices")  # mm: microbatch(size=2)
    """,
}


def program(text: str) -> str:
    lines = text.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return HEAD + "\n".join(line[indent:] for line in lines).rstrip() + "\n"


def rewrite(text: str) -> Rewrite:
    (result,) = rewrite_project(source_files({"before.py": text.encode()}), REGISTRY, load=lambda _: None)
    return result


def advised(refusal: Refusal) -> str | None:
    """The hint that a refusal says to write in the place of its own, None if it advises something else."""
    found = ADVICE.search(refusal.reason)
    if found is None or refusal.hint is None or not refusal.hint.text.startswith(found[2]):
        return None
    return found[1]


def followed(text: str, refusal: Refusal, advice: str) -> str:
    assert refusal.hint is not None
    lines = text.splitlines(keepends=True)
    line, start = lines[refusal.hint.line - 1], refusal.hint.column - 1
    assert line[start:].startswith(refusal.hint.text)
    lines[refusal.hint.line - 1] = line[:start] + advice + line[start + len(refusal.hint.text) :]
    return "".join(lines)


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_round_is_enough(name: str) -> None:
    text = program(PROGRAMS[name])
    (cause,) = [each for each in rewrite(text).refusals if not each.reason.startswith(CONSEQUENCE)]
    advice = advised(cause)
    assert advice is not None, cause
    result = rewrite(followed(text, cause, advice))
    assert (result.refusals, result.errors, result.failure) == ((), (), None)
    assert "# mm:" not in result.result.decode()


@pytest.mark.parametrize("schedule", sorted(IN_TURNS | OF_THE_V))
def test_stages_that_a_schedule_needs(schedule: str) -> None:
    text = program(f"""
        @jax.jit  # mm: mjit
        def step(w, x):
            return jax.grad(of_two)(w, x, 1.0)  # mm: microbatch(size=2, argnum=1, schedule="{schedule}")
    """)
    (error,) = rewrite(text).errors
    there = re.search(r"write `([^`]*)` there", error.message)
    here = re.search(r'"(1f1b)"', error.message)
    assert there is not None
    assert here is not None
    for followed_text in (
        text.replace("# mm: stages", f"# mm: stages({there[1]})"),
        text.replace(schedule, here[1]),
    ):
        result = rewrite(followed_text)
        assert (result.errors, result.refusals) == ((), ())


ONE_DEVICE = {
    "a decorator": "@jax.jit{}\ndef norm(state, x):\n    return state.apply_fn(x)\n",
    "a call with a name": "def norm(state, x):\n    return state.apply_fn(x)\n\n\nnorm_of = jax.jit(norm){}\n",
    "a call with a lambda": "norm_of = jax.jit(lambda state, x: state.apply_fn(x)){}\n",
}
STEP = """
@jax.jit  # mm: mjit
def step(w, x):
    return model(w, x)
"""


@pytest.mark.parametrize("form", ONE_DEVICE)
def test_a_function_for_one_device_can_be_left(form: str) -> None:
    """`state.apply_fn` may be another model than the one with the tasks."""
    text = program(STEP) + "\n\n" + ONE_DEVICE[form]
    (refusal,) = rewrite(text.format("")).refusals
    advice = re.search(r"or `(# mm: ignore\[\w+\])` if it is to run there", refusal.reason)
    assert advice is not None
    for left in (text.format(f"  {advice[1]}"), program(STEP) + "\n\n# mm: off\n" + ONE_DEVICE[form].format("")):
        result = rewrite(left)
        assert (result.refusals, result.errors, result.failure) == ((), (), None)
    # Another codemod is not meant.
    assert rewrite(text.format("  # mm: ignore[place_task]")).refusals


def test_hints_that_fixtures_advise_are_accepted() -> None:
    count = 0
    for folder in hint_cases("before.py"):
        data = (folder / "before.py").read_bytes()
        if b"# mm: " not in data or not data.isascii() or b"\r" in data:
            continue
        text = data.decode()
        for refusal in rewrite(text).refusals:
            advice = advised(refusal)
            if advice is None or refusal.hint is None:
                continue
            count += 1
            place = (refusal.hint.line, refusal.hint.column)
            after = rewrite(followed(text, refusal, advice))
            same = [
                each for each in after.refusals if each.hint is not None and place == (each.hint.line, each.hint.column)
            ]
            assert [each.reason for each in same if not each.reason.startswith(CONSEQUENCE)] == [], folder
            assert not after.errors
    assert count >= 5


FOLLOWED = tomllib.loads(Path(__file__).with_name("advice_followed.toml").read_text(encoding="utf-8"))
EDITS = [(case, told["at"], told["edits"]) for case, each in FOLLOWED.items() for told in each]


def files_of(case: str) -> dict[str, str]:
    """The files of a fixture, by their path."""
    folder = FIXTURES / "hints" / case
    if not (folder / "before").is_dir():
        return {"before.py": (folder / "before.py").read_text(encoding="utf-8")}
    paths = sorted((folder / "before").rglob("*.py"))
    return {each.relative_to(folder / "before").as_posix(): each.read_text(encoding="utf-8") for each in paths}


def said(files: dict[str, str]) -> tuple[Counter[str], dict[str, str]]:
    """Refusals and errors with a cause of their own, without the numbers of their lines; and all, by their place."""
    sources = source_files({path: text.encode() for path, text in files.items()})
    results = rewrite_project(sources, REGISTRY, load=lambda _: None)
    assert [each.failure for each in results if each.failure is not None] == []
    by_file = list(zip(files, results, strict=True))
    found = [(path, each.line, each.column, each.reason) for path, result in by_file for each in result.refusals]
    found += [(path, each.line, each.column, each.message) for path, result in by_file for each in result.errors]
    own = Counter(re.sub(r"\d+", "N", reason) for *_, reason in found if not reason.startswith(CONSEQUENCE))
    return own, {f"{path}:{line}:{column}": reason for path, line, column, reason in found}


@pytest.mark.slow
@pytest.mark.parametrize(("case", "at", "edits"), EDITS, ids=[f"{case}:{at}" for case, at, _ in EDITS])
def test_advice_that_is_followed_to_the_letter(case: str, at: str, edits: list[list[str]]) -> None:
    """That refusal is gone then, and no other came."""
    files = files_of(case)
    before, found = said(files)
    reason = found[at if ".py:" in at else f"before.py:{at}"]
    for *path, was, becomes in edits:
        file = path[0] if path else "before.py"
        assert was in files.setdefault(file, ""), was
        files[file] = files[file].replace(was, becomes, 1)
    after, _ = said(files)
    assert (before - after)[re.sub(r"\d+", "N", reason)] >= 1, reason
    assert not after - before


# Kinds of refusals whose advice the tests above follow, or `tests/runtime/test_gather.py` in the rewritten program
# (`jax.set_mesh`); that of all others is in `advice_followed.toml`.
FOLLOWED_ABOVE = (
    "a `_` is no array",
    "more than one argument could be the batch",
    "the loss takes `_`, which looks like a random key",
    "the loss closes over",
    "`_` looks like a random key",
    "needs stages in a V",
    "takes turns between several stages",
)


def kind_of_reason(reason: str) -> str:
    return re.sub(r"\d+", "N", re.sub(r"`[^`]*`", "`_`", reason))


def test_each_advice_of_a_fixture_is_followed() -> None:
    kinds: dict[str, str] = {}
    followed_kinds = set()
    for folder in sorted((FIXTURES / "hints").glob("*/*")):
        if not (folder / "case.toml").exists():
            continue
        case = folder.relative_to(FIXTURES / "hints").as_posix()
        told = tomllib.loads((folder / "case.toml").read_text(encoding="utf-8"))
        for text in (*told.get("refusals", ()), *told.get("errors", ())):
            place, _, reason = text.partition(": ")
            if not reason.startswith(CONSEQUENCE):
                kinds.setdefault(kind_of_reason(reason), f"{case} {text}")
                if any(each["at"] == place for each in FOLLOWED.get(case, ())):
                    followed_kinds.add(kind_of_reason(reason))
    assert not [part for part in FOLLOWED_ABOVE if not any(part in kind for kind in kinds)]
    rest = {kind: at for kind, at in kinds.items() if kind not in followed_kinds}
    assert [at for kind, at in rest.items() if not any(part in kind for part in FOLLOWED_ABOVE)] == []


FUNCTION_FOR_LAMBDA = """import jax.numpy as jnp

# mm: mesh(stage=2, data=2); axes(batch="data")


# mm: shard(out=("batch", None))
def layer(p, x):
    return jnp.tanh(x @ p)
"""
MODULE_FOR_FUNCTION = """import jax
from flax import linen as nn

# mm: mesh(stage=2)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return x + nn.Dense(x.shape[-1])(nn.gelu(x)), None


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        # mm: stages
        x, _ = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=4)()(x, None)
        return x


@jax.jit  # mm: mjit
def step(params, batch):
    return Model().apply(params, batch)
"""


@pytest.mark.parametrize("text", [FUNCTION_FOR_LAMBDA, MODULE_FOR_FUNCTION])
def test_a_definition_takes_the_place_of_a_function_that_is_refused(text: str) -> None:
    (result,) = rewrite_project(source_files({"main.py": text.encode()}), REGISTRY)
    assert [each.reason for each in result.refusals if "no step is compiled" not in each.reason] == []
    assert b"# mm:" not in result.result
