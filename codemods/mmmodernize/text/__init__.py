"""Code and paths in strings: what a program runs of its text, and with what its paths begin.

An expression comes in, what its text may be goes out, as a pattern where a part is unknown (`text_patterns`). Code that
a program runs is `run_text`; a path that Orbax would refuse today because it is relative, `checkpoint_paths`.
"""
