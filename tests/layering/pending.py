"""Parts that still break a rule. The list is temporary: it shrinks, and goes."""

PENDING: dict[str, set[str]] = {
    "cycles": {"penstock._core", "penstock.batcher"},
    "long_files": {"penstock._core", "penstock.batcher"},
    "long_functions": {"penstock.batcher"},
    "large_classes": {"penstock.batcher"},
    "large_protocols": {"penstock.batcher"},
    "shared_names": {"penstock.batcher", "penstock.spark", "penstock.testing"},
    "foreign_assignments": {"penstock._core", "penstock.batcher"},
    "probes": {"penstock._core"},
}
