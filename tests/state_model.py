"""The state table of DESIGN section 4 in plain Python, for eager forwards of one thread on the CPU.

Written apart from the C++ core, to be compared with it after every operator. `tests/cpp/state_model.h` is its twin over
a fake device, captures included.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Range = tuple[int, int]  # address, num_bytes
AUTO = -1


@dataclass
class Sight:
    """One collective, what was read after it, and what no window can plan: (ranges recorded before it, num_bytes)."""

    kind: str
    ranges: list[Range] = field(default_factory=list)
    unplanned: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Window:
    collective_index: int
    kind: str
    ranges: list[Range]
    budget_bytes: int = 0
    form: str = "auto"

    @property
    def num_bytes(self) -> int:
        return sum(num_bytes for _, num_bytes in self.ranges)


@dataclass
class Known:
    """What is known of one signature."""

    kinds: list[str] = field(default_factory=list)  # of the plan's collectives; empty: no plan
    windows: list[Window] = field(default_factory=list)
    prologue_bytes: int = 0
    evicted_bytes: int = 0
    num_skipped_views: int = 0
    num_eager: int = 0
    num_launched: int = 0

    def shown(self, paused: bool) -> dict:
        """The part of `status` that the model foretells."""
        return {
            "state": "planned" if self.kinds else "unlearned",
            "latched_off": False,
            "num_collectives": len(self.kinds),
            "num_windows": len(self.windows),
            "planned_bytes": 0 if paused else sum(window.budget_bytes for window in self.windows),
            "prologue_bytes": self.prologue_bytes,
            "evicted_bytes": self.evicted_bytes,
            "num_other_device": 0,
            "num_skipped_views": self.num_skipped_views,
            "num_eager": self.num_eager,
            "num_captures": 0,
            "num_launched": self.num_launched,
            "windows": [
                {
                    "collective_index": window.collective_index,
                    "kind": window.kind,
                    "num_segments": len(window.ranges),
                    "window_bytes": window.num_bytes,
                    "budget_bytes": 0 if paused else window.budget_bytes,
                    "form": window.form,
                }
                for window in self.windows
            ],
        }


@dataclass
class Options:
    budget_bytes: int
    all_gather: bool
    form: str
    max_tokens: int
    back_to_back: bool


class Prefetcher:
    def __init__(self, options: Options, auto_budget_bytes: int, unplanned_limit_bytes: int) -> None:
        self.options = options
        self.budget_bytes = auto_budget_bytes if options.budget_bytes == AUTO else options.budget_bytes
        self.unplanned_limit_bytes = unplanned_limit_bytes
        self.signatures: dict[tuple, Known] = {}
        self.num_pauses = 0
        self.generation = 0

    def accepts(self, num_tokens: int, mode: str) -> bool:
        base = mode.split("/")[0]
        decode_like = base in ("decode", "target_verify", "draft_extend")
        return decode_like and num_tokens <= self.options.max_tokens and not self.num_pauses

    def invalidate(self) -> None:
        self.generation += 1
        self.signatures = {signature: Known() for signature in self.signatures}

    def set_window(self, signature: tuple, collective_index: int, budget_bytes: int, form: str) -> bool:
        """False where the operator has to refuse."""
        for window in self.signatures.get(signature, Known()).windows:
            if window.collective_index == collective_index:
                window.budget_bytes = min(window.num_bytes, self.budget_bytes if budget_bytes == AUTO else budget_bytes)
                window.form = form or window.form
                return True
        return False

    def learn(self, known: Known, sights: list[Sight], prologue: list[Range], num_skipped_views: int) -> None:
        old_kinds, old = known.kinds, {window.collective_index: window for window in known.windows}
        known.kinds = [sight.kind for sight in sights]
        known.windows, known.evicted_bytes, known.num_skipped_views = [], 0, num_skipped_views
        known.prologue_bytes = _bytes_of(prologue)
        for index, sight in enumerate(sights):
            if sight.kind == "all_gather" and not self.options.all_gather:
                continue
            kept = sight.ranges[: _num_before_eviction(sight, self.unplanned_limit_bytes)]
            known.evicted_bytes += _bytes_of(sight.ranges) - _bytes_of(kept)
            is_cut = _num_before_eviction(sight, self.unplanned_limit_bytes) is not None
            if self.options.back_to_back and not is_cut and index == len(sights) - 1:
                kept, known.prologue_bytes = kept + prologue, 0
            if not kept:
                continue
            window = Window(index, sight.kind, kept)
            window.budget_bytes, window.form = min(window.num_bytes, self.budget_bytes), self.options.form
            same = old.get(index)
            if same is not None and old_kinds == known.kinds and same.num_bytes == window.num_bytes:
                window.budget_bytes, window.form = same.budget_bytes, same.form
            known.windows.append(window)


def _bytes_of(ranges: list[Range]) -> int:
    return sum(num_bytes for _, num_bytes in ranges)


def _num_before_eviction(sight: Sight, limit_bytes: int) -> int | None:
    read_bytes = 0
    for num_ranges, num_bytes in sight.unplanned:
        read_bytes += num_bytes
        if read_bytes > limit_bytes:
            return num_ranges
    return None


class Forward:
    def __init__(self, prefetcher: Prefetcher, handle: int, signature: tuple) -> None:
        self.prefetcher, self.handle, self.signature = prefetcher, handle, signature
        known = prefetcher.signatures.setdefault(signature, Known())
        self.kinds, self.window_indices = known.kinds, {window.collective_index for window in known.windows}
        self.generation = prefetcher.generation
        self.sights: list[Sight] = []
        self.prologue: list[Range] = []
        self.num_skipped_views = 0
        self.num_launched = 0
        self.differs = False

    def collective(self, kind: str) -> bool:
        """Whether its window is launched."""
        self.sights.append(Sight(kind))
        index = len(self.sights) - 1
        if self.kinds and (index >= len(self.kinds) or self.kinds[index] != kind):
            self.differs = True
        launched = not self.differs and index in self.window_indices
        self.num_launched += launched
        return launched

    def record(self, weight: Range | None) -> None:
        """weight: None for a view with holes."""
        if weight is None:
            self.num_skipped_views += 1
            return
        ranges = self.sights[-1].ranges if self.sights else self.prologue
        address, num_bytes = weight
        if not any(a <= address and address + num_bytes <= a + n for a, n in ranges):
            ranges.append(weight)

    def record_unplanned(self, num_bytes: int) -> None:
        if self.sights and num_bytes:
            self.sights[-1].unplanned.append((len(self.sights[-1].ranges), num_bytes))

    def finish(self, aborted: bool) -> None:
        prefetcher = self.prefetcher
        if aborted or prefetcher.num_pauses or prefetcher.generation != self.generation:
            return
        known = prefetcher.signatures[self.signature]
        if self.sights:
            prefetcher.learn(known, self.sights, self.prologue, self.num_skipped_views)
        known.num_launched = self.num_launched
        known.num_eager += 1


class Process:
    """Everything that `status` shows, and the brackets of one thread."""

    def __init__(self, auto_budget_bytes: int, unplanned_limit_bytes: int) -> None:
        self._limits = auto_budget_bytes, unplanned_limit_bytes
        self.auto_budget_bytes = auto_budget_bytes
        self.prefetchers: dict[int, Prefetcher] = {}
        self.forward: Forward | None = None
        self.num_ignored_inside = 0
        self.num_ignored_outside = 0
        self.outstanding = False

    def create(self, handle: int, options: Options) -> None:
        self.prefetchers[handle] = Prefetcher(options, *self._limits)

    def begin(self, handle: int, signature: tuple) -> bool:
        prefetcher = self.prefetchers[handle]
        if self.forward is not None:
            self.num_ignored_inside += 1
            return False
        if not prefetcher.accepts(*signature[1:]):
            self.num_ignored_outside += 1
            return False
        self.forward = Forward(prefetcher, handle, signature)
        return True

    def end(self, aborted: bool) -> None:
        if self.forward is None:
            self.num_ignored_outside = max(0, self.num_ignored_outside - 1)
        elif self.num_ignored_inside:
            self.num_ignored_inside -= 1
        else:
            forward, self.forward = self.forward, None
            if forward.sights:
                self.outstanding = False
            forward.finish(aborted)

    def collective(self, kind: str) -> None:
        if self.forward is not None:
            self.outstanding = self.forward.collective(kind)

    def prefetch(self, ranges: list[Range], budget_bytes: int) -> None:
        if budget_bytes == AUTO:
            budget_bytes = self.auto_budget_bytes if self.forward is None else self.forward.prefetcher.budget_bytes
        self.outstanding |= bool(ranges) and budget_bytes >= 16

    def pause(self, handle: int) -> None:
        self.prefetchers[handle].num_pauses += 1
        self.outstanding = False

    def shown_forward(self) -> dict | None:
        if self.forward is None:
            return None
        model, num_tokens, mode = self.forward.signature
        return {
            "prefetcher": self.forward.handle,
            "model": model,
            "num_tokens": num_tokens,
            "mode": mode,
            "num_collectives": len(self.forward.sights),
        }
