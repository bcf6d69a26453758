"""Start a program in several processes on this machine, and see that all of them end."""
