"""Looks at everything that decides whether prefetching works here, and says so in one sentence."""

from .examination import Examination, examine

__all__ = ["Examination", "examine"]
