"""Calls of the user's function, and their results.

`handlers` converts functions, `steps` are run before them, `register` selects one by type hints.
`workers` handle messages one by one, `batches` in batches; `timeouts` cancels slow ones. `results`
are returned, and `settling` carries them out.
"""
