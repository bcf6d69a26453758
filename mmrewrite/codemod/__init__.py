"""What a codemod is made of: base class, site, fragment, imports, registry."""
