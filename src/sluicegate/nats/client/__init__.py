"""The client of NATS: its options, its connection, and its errors."""
