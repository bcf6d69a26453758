"""Which modules of the packages a value may be, and what a project defines under their names itself.

`held_modules` follows values, `reexported_modules` what comes by other modules, `deprecations` has the names to report.
"""
