"""`sluicegate stream`: operate the subscriptions and the messages of a stream log."""
