"""The progress of a batch during its write: states, activities, forks."""
