"""Which modules of the packages a value may be, and what a project defines under their names itself."""
