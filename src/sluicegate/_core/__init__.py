"""The contracts shared by all parts of Sluicegate; imports only the standard library.

Parts import the modules of this package by name; users import these objects from their public
homes.

`batch`, `send`, `sink`, `decorator`, `outcome`, `answer` and `delivery` are the contract of sinks,
`source`, `subscriptions`, `positions` and `park_store` that of sources, `transaction` and `staging`
that of both together. `order` has lanes of keys, `runtime` tasks and threads, `values` items and
rows as text. `checks`, `keywords`, `addresses`, `text`, `logs` and `errors` are for messages.
"""
