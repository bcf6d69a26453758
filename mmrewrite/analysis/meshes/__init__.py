"""What a program asks of its mesh and its schedule.

`step_mesh` finds the mesh of a step in any module, `mesh_requests` the calls that ask JAX for a mesh or devices
themselves, `schedules` whether a schedule fits the stages and how it is written.
"""
