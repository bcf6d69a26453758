"""Edits of `modernize`: arguments, imports, line breaking."""
