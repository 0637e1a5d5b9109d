"""The parts of the cases of Kafka."""
