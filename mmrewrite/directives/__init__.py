"""The hint vocabulary, and the comments and calls that become `Hint` values.

The text and the tree of a module come in; hints and errors go out, the same whatever carried the hint. A directive or
an argument is a record in `vocabulary`, checked by `arguments`. Which bytes may carry a hint is `carrier`; comments are
found by `comments`, and calls, decorators and contexts of `mmrewrite.hints` by `calls`. `collect` makes hints of them,
and obeys `# mm: off`, `on` and `ignore`. Sizes in bytes are read and printed by `sizes`; those of reports of a step, by
`mmruntime._inspect.report_text`.
"""
