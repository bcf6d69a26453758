"""Codemods for names that were renamed, moved or removed."""
