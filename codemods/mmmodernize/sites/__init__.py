"""The site that a codemod is given, what code chooses by the version, and the decision about a site.

A use of a name comes in (`mmrewrite.project.uses` finds them), edits or a refusal go out. `site` is what codemods ask
and write with, `version_guards` finds code that is left alone, by the conditions that `version_conditions` computes.
"""
