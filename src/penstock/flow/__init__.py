"""What joins a source, a batcher and a sink."""

from .._core.public import publish
from .pipe import Pipe, pipe
from .report import PipeReport, PipeStats

__all__ = ["Pipe", "PipeReport", "PipeStats", "pipe"]

publish(__name__, Pipe, PipeReport, PipeStats, pipe)
