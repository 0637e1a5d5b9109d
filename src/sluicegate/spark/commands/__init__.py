"""`sluicegate pipeline`: check, explain and run pipelines on Spark."""
