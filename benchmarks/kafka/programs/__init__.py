"""Programs of the cases on Kafka, each run in a separate process."""
