"""The write of one partition in a worker process of Spark.

- `partition`: what Spark calls; `worker`: what the process keeps between tasks.
- `task`: the rows through an open sink; `chunks`: their division into writes; `transaction`: a unit
  whose rows become visible at once.
- `key_failure`: later rows of a failed key; `results`: counts and dead rows.
"""
