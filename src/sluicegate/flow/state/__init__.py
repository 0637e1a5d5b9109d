"""The state of partitions, stored together with their positions.

`store` is one partition's state as handlers see it; `changes` are those of its turns, until they
are stored; `positions` takes partitions over, reads their state, and stores both.
"""
