"""The named schedules: one file for each algorithm, or family of them."""
