"""Options of `format("sluicegate")`, and the sink that they describe."""
