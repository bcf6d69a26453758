"""What codemods write: arguments, statements, imports, and lines broken again; each edit with its meaning.

`arguments` and `statements` are asked by codemods for their sites; `imports` and `grown_calls` finish a module once all
of its sites are edited.
"""
