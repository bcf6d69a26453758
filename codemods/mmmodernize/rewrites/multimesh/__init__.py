"""Codemods for programs that were written for MultiMesh."""
