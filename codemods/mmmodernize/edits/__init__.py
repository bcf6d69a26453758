"""What codemods write: arguments, statements, imports, and lines broken again; each edit with its meaning."""
