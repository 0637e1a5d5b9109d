"""The parts of the cases from Kafka to PostgreSQL."""
