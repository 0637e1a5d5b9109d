"""Sluicegate compared with its peers, in one run: `python -m benchmarks --help`.

The cases of a technology are in `cases/`, under its name; what only they use is in a folder of that
name here. A process of another interpreter imports that folder, and never `cases`, which needs the
development environment.
"""
