"""The client of Apache Kafka on librdkafka: a group's member, and a reader of its partitions."""
