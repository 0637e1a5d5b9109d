"""What Spark finds by itself: it imports every top-level module named `pyspark_*` and registers its
`DefaultSource`.

So `df.write.format("penstock")` works where Penstock is installed, without a call of `register`.
Spark gives up on all data sources of Python when one such module cannot be imported; where our
extra is not installed, or PySpark is too old, this one has no `DefaultSource`.
"""

try:
    from penstock.spark import source
except ImportError:
    __all__: list[str] = []
else:
    DefaultSource = source.PenstockSource
    __all__ = ["DefaultSource"]
