"""Loops that add up over microbatches: which names they carry, and why one cannot become a function."""

from __future__ import annotations

import pytest
from hinted_sites import loop_in, refusal_of, site_of

from mmrewrite.analysis.loops.accumulation_loops import carried_names, refuse_cutting

pytestmark = pytest.mark.quick


def carried(body: str, before: str = "grads = loss = 0", after: str = "return grads, loss") -> list[str]:
    lines = "\n    ".join(body.split("\n"))
    site = site_of(
        f"import jax\ndef step(p, batches, key):\n  {before}\n"
        f"  for b in batches:  # mm: microbatch(count=4)\n    {lines}\n  {after}\n"
    )
    return carried_names(site, loop_in(site.facts.tree))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("grads = grads + f(p, b)", ["grads"], id="a sum"),
        pytest.param("loss += g(p, b)\ngrads = grads + f(p, b)", ["loss", "grads"], id="in the order of the loop"),
        pytest.param("h = f(p, b)\ngrads = grads + h", ["grads"], id="not the names of one iteration"),
        pytest.param("if b:\n  loss = loss + g(p, b)\ngrads = grads + f(p, b)", ["loss", "grads"], id="in a branch"),
        pytest.param("print(b)\njax.debug.print('x')\ngrads = grads + f(p, b)", ["grads"], id="printing is harmless"),
        pytest.param("d = {}\nd['x'] = b\ngrads = grads + f(p, d)", ["grads"], id="a container of one iteration"),
    ],
)
def test_names_that_an_iteration_reads_from_the_one_before(body: str, expected: list[str]) -> None:
    assert carried(body) == expected


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(
            "if b: break\ngrads = grads + f(p, b)",
            "`break` in a loop that accumulates gradients: every microbatch must be computed, by the same code; write "
            "it without",
            id="break",
        ),
        pytest.param(
            "return grads", "`return` in a loop that accumulates gradients; move it out of the loop", id="return"
        ),
        pytest.param(
            "yield b\ngrads = grads + 1",
            "`yield` or `await` in a loop that accumulates gradients; write it without",
            id="yield",
        ),
        pytest.param(
            "grads = grads + f(p, b)\nlog.append(b)",
            "`log.append(...)` is called for what it changes, and microbatches do not run one after the other; add up "
            "in a name (`total = total + loss`), or do it after the loop",
            id="a call for its effect",
        ),
        pytest.param(
            "p['x'] = b\ngrads = grads + 1",
            "`p['x']` is changed in the loop and made outside of it, and microbatches do not run one after the other; "
            "add up in a name of its own, and store that after the loop",
            id="an item of something outside",
        ),
        pytest.param(
            "key, k = jax.random.split(key)\ngrads = grads + f(p, b, k)",
            "each iteration changes the random key `key` for the next, and microbatches do not wait for each other; "
            "write `keys = jax.random.split(key, ...)` above the loop and take one of them in each iteration, or fold "
            "in the number of the iteration",
            id="a chain of random keys",
        ),
        pytest.param(
            "loss = g(p, b)\ngrads = grads + f(p, b)",
            "`loss` is read after the loop, where it has the value of the last iteration; add it up in the loop, or "
            "compute it after the loop",
            id="a value of the last iteration",
        ),
        pytest.param(
            "f(p, b).x", "the loop adds nothing up; hint the loop that accumulates the gradients", id="no sum"
        ),
        pytest.param(
            "total = total + 1\ngrads = grads + 1",
            "`total` has no value before the loop; write `total = None` above it",
            id="a sum without a start",
        ),
        pytest.param(
            "global counter\ncounter = 1\ngrads = grads + 1",
            "`global` in a loop that accumulates gradients; move it out of the loop",
            id="global",
        ),
    ],
)
def test_loops_that_cannot_become_a_function(body: str, reason: str) -> None:
    assert refusal_of(lambda: carried(body))[1] == reason


@pytest.mark.parametrize(
    ("hint", "refused"),
    [("count=4", None), ('count=4, schedule="gpipe"', None), ("count=4, dim=1", "dim"), ("size=2", "size")],
)
def test_arguments_about_cutting_a_batch_that_is_cut_by_hand(hint: str, refused: str | None) -> None:
    site = site_of(f"for b in batches:  # mm: microbatch({hint})\n  g = g + b\n")
    if refused is None:
        refuse_cutting(site, "this loop")
    else:
        assert refusal_of(lambda: refuse_cutting(site, "this loop"))[1] == (
            f"this loop cuts the batch itself, so `{refused}=` has no meaning; write `count=` with the number of its "
            "iterations, and `schedule=`"
        )
