"""The uses of old names in a module, the site that a codemod is given, and the decision about it.

`uses` finds them in the tree, `version_guards` leaves code alone that chooses by the version, `site` takes edits.
"""
