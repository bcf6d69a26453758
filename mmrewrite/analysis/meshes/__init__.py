"""What a program asks of its mesh and its schedule.

`step_mesh` finds the mesh of a step in any module, `mesh_requests` the calls that ask JAX for a mesh or devices
themselves, `schedule_fit` whether a schedule fits the stages.
"""
