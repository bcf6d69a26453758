"""Start a program in several processes on this machine, and see that all of them end.

A command comes in, lines with the number of their process go out. `job` starts and waits, `environment` says what each
process is told, `watchman` ends what a killed run has left. `lines` cuts what they print into whole lines.
"""
