"""What the cases of Kafka to PostgreSQL are made of."""
