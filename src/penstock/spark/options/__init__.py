"""Options of `format("penstock")`, and the sink that they describe."""
