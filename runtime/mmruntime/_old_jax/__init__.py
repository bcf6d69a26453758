"""Replacements of features that JAX removed, for modernized programs; `mmruntime.compat` is their public face.

Each file is one feature; a new one is exported by `compat`.
"""
