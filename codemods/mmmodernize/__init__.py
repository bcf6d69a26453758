"""Replace names that JAX removed or deprecated by exact equivalents of today, in whole regions or not at all.

Files come in, a `Rewrite` for each goes out. `product` is what the tool asks, `command` the command, `upgrade` its
report by release. `rewrite` chooses the files, `decide` finds and decides every site: `names` says which are old,
`sites` what a codemod is given, `rewrites` has the codemods, `edits` what they write, `doubts` what is reported only.
The other folders answer questions about a program.
"""
