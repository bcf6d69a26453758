"""Compiled steps: `mjit`, `parallelize`, and the plan of passes."""
