"""Codemods for where single values lie."""
