"""Parts that still break a rule. The list is temporary: it shrinks, and goes."""

PENDING: dict[str, set[str]] = {
    "cycles": {"penstock.batcher"},
    "long_files": {"penstock.batcher"},
    "long_functions": {"penstock.batcher"},
    "large_classes": {"penstock.batcher"},
    "large_protocols": {"penstock.batcher"},
    "shared_names": {"penstock.batcher"},
    "foreign_assignments": {"penstock._core", "penstock.batcher"},
}
