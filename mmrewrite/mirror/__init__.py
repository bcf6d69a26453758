"""A rewritten copy of the sources, and processes that run it.

Results of the engine come in; `build` writes the copy with its manifest, `child_process` runs one of its functions and
reads the JSON document that it prints, within the bounds of `limits`. Messages name lines of the source for those of
the copy: `lines_before`.
"""
