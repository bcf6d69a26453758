"""The named schedules, one file for each algorithm or family of them; `_catalog` finds their records by walking.

To add a schedule, add a file here with a function from `ScheduleSizes` to `Order` and a `NamedSchedule` record.
"""
