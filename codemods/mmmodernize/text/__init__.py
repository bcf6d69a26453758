"""Code and paths in strings: what a program runs of its text, and with what its paths begin."""
