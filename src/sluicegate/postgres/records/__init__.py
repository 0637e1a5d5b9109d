"""What streams of messages and queues of jobs have in common."""
