"""The state of partitions, stored together with their positions.

`store` is what handlers see of one partition; `changes` are those of its turns, until they are
stored; `positions` takes partitions over, reads their state, and stores both.
"""
