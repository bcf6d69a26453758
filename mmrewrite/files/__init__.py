"""The files of a run: which to read, how to write them, and patches of them."""
