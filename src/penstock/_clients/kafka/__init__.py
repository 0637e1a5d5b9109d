"""The client of Apache Kafka: its options, its errors, and what aiokafka keeps to itself."""
