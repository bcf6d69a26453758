"""What a text or a comment says is no evidence of what a module uses: it is rewritten and told as without it."""

from __future__ import annotations

import pytest
from fixture_files import modernize_text

HEAD = "import jax\nimport jax.numpy as jnp\nfrom flax import nnx\nimport orbax.checkpoint as ocp\njax.tree_map\n"
# A program, and words by which code says that it is of today, or another one.
PROGRAMS = {
    "m = jax.make_mesh((2,), ('x',))\n": "AxisType reshard explicit_axes auto_axes out_sharding",
    "w = nnx.Param(1.0, sharding=('x',))\n": "out_sharding sharding_names eager_sharding use_eager_sharding",
    "i = nnx.with_partitioning(f, ('x',))\n": "out_sharding sharding_names eager_sharding",
    "ocp.PyTreeCheckpointer().save('a/b', state)\n": "use_ocdbt",
    "x = jax.jit(f)\n": "multimesh legate",
}


def told(text: str) -> tuple[str, list[str]]:
    result = modernize_text(text)
    lines = text.splitlines()
    reasons = [f"{lines[each.line - 1]}: {each.reason}" for each in (*result.refusals, *result.left)]
    return result.result.decode(), reasons


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_word_in_a_text_or_a_comment_changes_nothing(program: str) -> None:
    plain, reasons = told(HEAD + program)
    for word in PROGRAMS[program].split():
        for form in (f'"""About {word}."""\n', f"# {word}\n", f"NOTE = 'see {word} (and .{word}=)'\n"):
            result, others = told(form + HEAD + program)
            assert (result.removeprefix(form), others) == (plain, reasons), form


def test_a_word_of_code_is_evidence() -> None:
    program = next(iter(PROGRAMS))
    for use in ("jnp.dot(x, y, out_sharding=s)", "jax.sharding.reshard(x, s)", "jax.sharding.AxisType.Explicit"):
        result, reasons = told(f"{HEAD}{use}\n{program}")
        assert "axis_types" not in result, use
        assert any("Explicit axes" in reason for reason in reasons), use
    assert "axis_types" in told(f"{HEAD}jax.sharding.AxisType.Auto\n{program}")[0]
