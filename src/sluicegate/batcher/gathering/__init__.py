"""Gathering of items into batches: decisions without clock, task or I/O.

`gatherer` is the contract, and `make` chooses one: `plain`, `keyed` (lanes of keys, with `holds`,
`eras` and `keyed_pack`) or `tenants` (`tenant_queue`, `turns`). `pack` is the open batch, `window`
the limit of the fast path.
"""
