"""Facts of each module, imports between modules, what a step reaches, and axis names.

Files come in; `facts` says what one module has, `uses` where it uses which names, `project` what a name means across
modules, `reach` what code leads to, `axis_names` which logical axes a program has already. `hinted_files` reads all
hinted files of a run together, as one may take its hints from another.
"""
