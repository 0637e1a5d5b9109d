"""Entry point for Spark, which imports every top-level module named `pyspark_*` and registers its
`DefaultSource`.

So `df.write.format("sluicegate")` works without a call of `register`. Spark disables all data
sources of Python when one such module cannot be imported. So if the extra `spark` is missing, or
PySpark is too old, this module has no `DefaultSource`.
"""

try:
    from sluicegate.spark import source
except ImportError:
    __all__: list[str] = []
else:
    DefaultSource = source.SluicegateSource
    __all__ = ["DefaultSource"]
