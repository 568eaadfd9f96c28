"""Reads the blocks and links of README.md and docs/*.md.

A comment on the line before a block says how the tests take it:

    <!-- not run: WHY -->          it cannot run here
    <!-- given: model, x -->       it needs these names of docs_given.py, which a reader brings
    <!-- file: first.py -->        it is the text of that file
    <!-- output -->                what the block before it prints, word for word

Python and shell blocks of a page run from top to bottom; Python blocks share their names. A `console` block is a command
behind `$ `, and below it what it prints, word for word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(r"^(?:<!-- (not run|given|file|output)(?:: (.+?))? -->\n+)?```(\w*)\n(.*?)^```$", re.M | re.S)
_LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")


@dataclass(frozen=True)
class Block:
    """language: the word behind the fence. line: of the first line of `text`. note, detail: its comment, or ''."""

    language: str
    text: str
    line: int
    note: str
    detail: str

    @property
    def is_code(self) -> bool:
        return self.language in ("python", "shell", "console")


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page in order."""
    text = page.read_text()
    return [
        Block(found[3], found[4], text.count("\n", 0, found.start(4)) + 1, found[1] or "", found[2] or "")
        for found in _BLOCK.finditer(text)
    ]


def relative_links_of(page: Path) -> list[str]:
    """The targets of a page's links that are not on the web, with their #fragments."""
    targets = [found[1] or found[2] for found in _LINK.finditer(_prose(page))]
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def resolves(page: Path, link: str) -> bool:
    """Whether a relative link of `page` leads to a file, and its #fragment to a heading there."""
    name, _, fragment = link.partition("#")
    target = page.parent / name if name else page
    return target.exists() and (not fragment or fragment in _fragments(target))


def _prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)


def _fragments(page: Path) -> set[str]:
    """The headings of a page as the web shows them in links: lower case, dashes for spaces, no punctuation."""
    headings = re.findall(r"^#+ (.+)$", _prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
