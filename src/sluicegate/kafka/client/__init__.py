"""The client of Apache Kafka: its options, its errors, and internals of aiokafka."""
