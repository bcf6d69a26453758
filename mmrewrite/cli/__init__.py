"""The command line: the only part of the tool that prints and writes.

`commands` defines the commands, `options` what they share, `config` the configuration. `session` is one run: it selects
files, asks an engine, prints, and ends with an exit status. `quick` and `replay` answer runs before anything slow is
imported, `cache` keeps results. Formats are in `reports`, what only a terminal is shown in `terminal`.
"""
