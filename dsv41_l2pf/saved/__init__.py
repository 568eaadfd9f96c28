"""Files that the library and its users save, made readable: calibrations, tunings and a prefetcher's status."""

from .documents import Document, read_document

__all__ = ["Document", "read_document"]
