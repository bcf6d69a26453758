"""The files of a run: which to read, how to write them, and patches of them.

Paths and ignore rules come in. `select` chooses (the suffixes are arguments of it, given in `mmrewrite.cli`), `walk`
finds and reads, `write` replaces whole files, `patch` prints, `revisions` asks git, `cache_folder` keeps what runs
found.
"""
