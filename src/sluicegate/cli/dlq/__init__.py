"""`sluicegate dlq`: inspect, replay and purge dead letters."""
