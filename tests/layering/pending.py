"""Parts that still break a rule. The list is temporary: it shrinks, and goes."""

PENDING: dict[str, set[str]] = {
    "cycles": {"penstock._core", "penstock.batcher"},
    "long_files": {"penstock._core", "penstock.batcher", "penstock.cli"},
    "long_functions": {"penstock.batcher", "penstock.cli"},
    "large_classes": {"penstock.batcher"},
    "large_protocols": {"penstock.batcher"},
    "shared_names": {
        "penstock._core",
        "penstock.batcher",
        "penstock.sinks",
        "penstock.spark",
        "penstock.testing",
    },
    "foreign_assignments": {
        "penstock._clients",
        "penstock._core",
        "penstock.batcher",
        "penstock.cli",
        "penstock.sinks",
        "penstock.testing",
    },
    "probes": {
        "penstock._core",
        "penstock.batcher",
        "penstock.cli",
        "penstock.sinks",
        "penstock.spark",
        "penstock.testing",
    },
}
