"""The files of a run: which to read, how to write them, and patches of them.

Paths and ignore rules come in. `walk` finds files by their suffixes and reads them, `select` chooses, `write` replaces
whole files, `patch` prints, `revisions` asks git, `cache_folder` keeps what runs found.
"""
