"""What the learning forwards of a prefetcher saw of a model's weights, by qualified name."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Sightings:
    """read: weights whose bytes an operator read. by_row: an operator read rows of it. routed: a router chose what of
    it was read; no window can plan that. complete: a whole forward was seen.
    """

    read: set[str] = field(default_factory=set)
    by_row: set[str] = field(default_factory=set)
    routed: set[str] = field(default_factory=set)
    complete: bool = False

    @property
    def only_rows(self) -> set[str]:
        """Weights of which nothing but rows was read, as of an embedding that is not tied to the head."""
        return self.by_row - self.read

    def unseen(self, names: set[str]) -> set[str]:
        """Those of `names` that no operator was seen to read; empty before a whole forward was seen."""
        return names - self.read - self.by_row - self.routed if self.complete else set()
