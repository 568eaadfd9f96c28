"""Notes when the forward and the windows of one step begin and end."""

from __future__ import annotations

from dataclasses import dataclass

from .clocks import Clock


@dataclass(frozen=True)
class Span:
    """One collective of the traced forward. opened, closed: positions of the clock's marks."""

    kind: str
    opened: int
    closed: int


class StepRecorder:
    """An `Observer` of the first forward that it meets; later ones are ignored.

    signature: (model, number of tokens, mode), None before a forward came. spans: its collectives in order. The clock's
    first mark is the forward's begin and its last one the forward's end.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.signature: tuple[int, int, str] | None = None
        self.spans: list[Span] = []
        self._num_marks = 0
        self._is_inside = False
        self._open: tuple[str, int] | None = None

    def forward_begins(self, model_id: int, num_tokens: int, mode: str) -> None:
        if self.signature is None:
            self.signature = (model_id, num_tokens, mode)
            self._is_inside = True
            self._mark()

    def window_opens(self, kind: str) -> None:
        if self._is_inside:
            self._open = (kind, self._mark())

    def window_closes(self) -> None:
        if self._open is not None:
            self.spans.append(Span(*self._open, self._mark()))
            self._open = None

    def forward_ends(self) -> None:
        if self._is_inside:
            self._mark()
            self._is_inside = False

    def _mark(self) -> int:
        self.clock.mark()
        self._num_marks += 1
        return self._num_marks - 1
