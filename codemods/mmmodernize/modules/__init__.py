"""Which modules of the packages a value may be, and what a project defines under their names itself.

`held_modules` follows values, `project_names` has the names to report and the age of a project.
"""
