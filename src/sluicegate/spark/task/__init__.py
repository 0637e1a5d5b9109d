"""The write of one partition in a worker process of Spark."""
