"""The commands `sluicegate pg`, `sluicegate queue` and `sluicegate stream`."""
