"""Which names old JAX code uses: the indices of what releases removed, and the gates on the bytes of a file.

For a new release run `tools/index_names.py`, which writes the `.jsonl` files that `name_index` reads; a name that only
moved is then a line of `rewrites.names.move_names`. What to write instead is `advice`, what means something else
`changed_meanings`; keywords that changed are `old_keywords`, `shared_names` has the names that several codemods look
for. `gate`, `call_gate` and `reexports` say by text alone which files to read.
"""
