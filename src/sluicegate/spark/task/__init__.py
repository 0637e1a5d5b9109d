"""The write of one partition in a Spark worker process.

- `partition`: the function that Spark calls; `worker`: the state that the process keeps between
  tasks.
- `task`: the rows through an open sink; `chunks`: their division into writes; `transaction`: a unit
  whose rows become visible together.
- `key_failure`: later rows of a failed key; `results`: counts and dead rows.
"""
