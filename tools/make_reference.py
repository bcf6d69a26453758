"""Write docs/reference.md: the public names of mmruntime, each with its signature and its docstring.

    python tools/make_reference.py

The sources are read with griffe and not imported, so this needs no JAX.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference.md"
# The modules with public names, as programs write them.
MODULES = {
    "mm": "mmruntime",
    "mm.flax": "mmruntime.flax",
    "mm.schedules": "mmruntime.schedules",
    "mm.compat": "mmruntime.compat",
}
# What has no public name, and programs get all the same.
RETURNED = {
    "What `mm.mjit` returns": "mmruntime._step.mesh_function.MeshFunction",
    "What `explain` returns": "mmruntime._inspect.report.Report",
    "What `timeline` returns": "mmruntime._inspect.timeline.Timeline",
    "What `measure` returns": "mmruntime._inspect.timeline.Measurement",
}
HEAD = """# Reference: the public names

`import mmruntime as mm`. `tools/make_reference.py` makes this page of the docstrings; do not edit it by hand. Guides
say what the names are for: [the runtime](runtime.md), [microbatches](microbatches.md), [schedules](schedules.md),
[several processes](cluster.md), [older programs](compat.md).
"""


def page() -> str:
    """The text of the page."""
    package = griffe.load("mmruntime", search_paths=[ROOT / "runtime"])
    parts = [HEAD]
    for prefix, name in MODULES.items():
        module = package if name == "mmruntime" else package[name.removeprefix("mmruntime.")]
        parts.append(f"## `{name}`\n")
        for public, item in _public(module):
            parts += [f"### `{prefix}.{public}`\n", *_described(item, f"{prefix}.{public}")]
        if module is package:
            for title, path in RETURNED.items():
                item = package[path.removeprefix("mmruntime.")]
                parts += [f"### {title}\n", *_described(item, item.name, is_called=False)]
    return "\n".join(parts)


def _public(module: griffe.Object) -> Iterator[tuple[str, griffe.Object | griffe.Alias]]:
    """The public names of a module in the order of the alphabet, with what they stand for."""
    names = module.exports or [name for name in module.members if not name.startswith("_")]
    for name in sorted(map(str, names), key=str.lower):
        item = module.members[name]
        if item.is_alias and not item.target_path.startswith("mmruntime."):  # type: ignore[union-attr]
            # What it imports for itself, such as `annotations`.
            continue
        try:
            found = item.final_target if isinstance(item, griffe.Alias) else item
        except griffe.AliasResolutionError:
            # JAX's own.
            found = item
        if not found.is_alias and found.kind is griffe.Kind.MODULE:
            continue
        yield name, found


def _described(item: griffe.Object | griffe.Alias, name: str, *, is_called: bool = True) -> Iterator[str]:
    """The paragraphs of an object: how it is called, and its docstring."""
    if isinstance(item, griffe.Alias):
        yield f"JAX's own, `{_end_of(item)}`.\n"
        return
    if item.is_attribute:
        value = str(item.value)  # type: ignore[attr-defined]
        yield f"`{value}`\n" if value.isidentifier() or len(value) < 60 else ""
    if is_called and (item.is_function or item.is_class):
        yield f"```python\n{_signature(item, name)}\n```\n"
    if item.docstring is not None:
        yield from _sections(item.docstring)
    if isinstance(item, griffe.Class):
        for member in item.all_members.values():
            if member.name.startswith("_"):
                continue
            if isinstance(member, griffe.Function) and member.docstring is not None:
                kind = "property" if "property" in member.labels else None
                call = f"{name}.{member.name}" if kind else _signature(member, member.name)
                yield f"#### `{member.name}`\n"
                if kind is None:
                    yield f"```python\n{call}\n```\n"
                yield from _sections(member.docstring)
            elif isinstance(member, griffe.Attribute) and "property" in member.labels and member.docstring is not None:
                yield f"#### `{member.name}`\n"
                yield from _sections(member.docstring)


def _end_of(item: griffe.Alias) -> str:
    while isinstance(item, griffe.Alias) and item.target_path.startswith("mmruntime."):
        item = item.modules_collection.get_member(item.target_path)
    return item.target_path


def _signature(item: griffe.Object, name: str) -> str:
    """How a function or a class is called; one line, or an argument on each."""
    parameters = [each for each in getattr(item, "parameters", ()) if each.name not in ("self", "cls")]
    written, keyword_only = [], False
    for each in parameters:
        if each.kind is griffe.ParameterKind.keyword_only and not keyword_only:
            keyword_only = True
            if not any(other.kind is griffe.ParameterKind.var_positional for other in parameters):
                written.append("*")
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
        text = stars.get(each.kind, "") + each.name
        has_default = each.default is not None and each.kind not in stars
        if each.annotation is not None:
            text += f": {each.annotation}" + (f" = {each.default}" if has_default else "")
        elif has_default:
            text += f"={each.default}"
        written.append(text)
    returned = getattr(item, "returns", None)
    end = f" -> {returned}" if returned is not None and not item.is_class else ""
    line = f"{name}({', '.join(written)}){end}"
    if len(line) <= 100:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in written) + f"){end}"


def _sections(docstring: griffe.Docstring) -> Iterator[str]:
    """The paragraphs of a docstring in Google's style as Markdown."""
    for section in docstring.parse("google", warnings=False):
        match section.kind.value:
            case "text":
                yield section.value.strip() + "\n"
            case "parameters" | "attributes" | "other parameters":
                title = "Attributes" if section.kind.value == "attributes" else "Arguments"
                yield f"{title}:\n"
                yield "".join(f"- `{each.name}`: {_flowing(each.description)}\n" for each in section.value)
            case "returns" | "yields":
                title = "Returns" if section.kind.value == "returns" else "Yields"
                yield f"{title}: " + " ".join(_flowing(each.description) for each in section.value) + "\n"
            case "raises" | "warns":
                yield f"{section.kind.value.capitalize()}:\n"
                yield "".join(f"- `{each.annotation}`: {_flowing(each.description)}\n" for each in section.value)
            case "admonition":
                yield f"{section.title}: {_flowing(section.value.description)}\n"
            case "examples":
                yield "".join(
                    f"```python\n{text}\n```\n" if kind.value == "examples" else text + "\n"
                    for kind, text in section.value
                )
            case kind:
                raise ValueError(f"{docstring.parent}: a section {kind!r} has no form on the page")


def _flowing(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text.strip())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
