"""What members of a group of Kafka have in common, whichever client they use. No client is loaded."""
