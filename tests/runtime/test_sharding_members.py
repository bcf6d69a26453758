"""Each member of `jax.sharding` gives the old answer on today's JAX once a program is modernized, or is reported."""

import warnings

import pytest

from tests.sharding_members import members, modernized, said

# Warnings of a row are its own: `pmap` and `with mesh:` warn on some releases.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize("owner", dict.fromkeys(member.owner for member in members()))
def test_the_old_answer_or_a_report(owner) -> None:
    for member, result in zip(members(), modernized(), strict=True):
        if member.owner != owner:
            continue
        where = f"{member.owner}, {member.name}"
        assert result.failure is None, where
        if result.refusals:
            continue
        names: dict[str, object] = {}
        with warnings.catch_warnings():
            exec(compile(result.result, where, "exec"), names)
        found = repr(names["out"])
        assert member.old in (found, "raises") or said(result), f"{where}: {found} instead of {member.old}, unreported"


def test_what_is_neither_rewritten_nor_reported_gives_the_old_answer_by_itself() -> None:
    silent = [m for m, r in zip(members(), modernized(), strict=True) if not r.edits and not said(r)]
    for member in silent:
        names: dict[str, object] = {}
        exec(compile(member.source, member.name, "exec"), names)
        assert member.old in (repr(names["out"]), "raises"), (member.owner, member.name)
    assert {member.owner for member in silent} == {"NamedSharding", "SingleDeviceSharding", "PartitionSpec", "Mesh"}
