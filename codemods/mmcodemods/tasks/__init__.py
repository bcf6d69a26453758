"""Codemods for tasks: calls, functions, modules and names of scopes that run on one submesh."""
