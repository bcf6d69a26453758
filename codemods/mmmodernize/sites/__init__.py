"""The uses of old names in a module, the site that a codemod is given, and the decision about it."""
