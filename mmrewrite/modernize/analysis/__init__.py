"""Questions of the codemods of `modernize` about a program: meshes in context, reach, old names."""
