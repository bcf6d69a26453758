"""Which names old JAX code uses: the indices of what releases removed, and the gates on the bytes of a file.

For a new release run `tools/index_names.py`, which writes the `.jsonl` files; what to write instead is `advice`, what
means something else `changed_meanings`. `gate`, `call_gate` and `reexports` say by text alone which files to read.
"""
