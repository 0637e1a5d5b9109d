"""The client of Apache Kafka, on aiokafka.

- `session`: one group membership and its commits, through `internals`, aiokafka's private parts.
- `producer`: one request at a time; `transactional`: records and offsets in transactions;
  `coordinator`: requests to the broker of a transaction or a group.
- `options`: connection options; `answers`, `errors`: the reports of brokers and clients.
"""
