"""What the cases of Kafka as a source are made of."""
