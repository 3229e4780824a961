"""Rule 6 of the ledger: a subscriber hears every payload whose post returned, or is told of a gap.

One process posts at a time, so posts have an order: that of their `posting`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..journal import Life
from .windows import Violation, Windows


@dataclass
class Post:
    """A post; `returned` is None if it was not acknowledged."""

    label: str
    began: float
    returned: float | None = None


def check(lives: Iterable[Life], windows: Windows) -> Iterator[Violation]:
    lives = list(lives)
    posts = _posts(lives)
    place = {post.label: number for number, post in enumerate(posts)}
    for life in lives:
        yield from _heard(life, posts, place)


def _posts(lives: Iterable[Life]) -> list[Post]:
    posts: dict[str, Post] = {}
    for life in lives:
        for line in life.lines:
            if line.event == "posting":
                posts[line.fields[0]] = Post(line.fields[0], line.at)
            elif line.event == "posted":
                posts[line.fields[0]].returned = line.at
    return sorted(posts.values(), key=lambda post: post.began)


def _heard(life: Life, posts: list[Post], place: dict[str, int]) -> Iterator[Violation]:
    """Between two payloads all others were posted while the subscriber listened: none may be missing without a gap."""
    last: int | None = None
    gap = False
    for line in life.lines:
        if line.event in ("gap", "listening"):
            gap = True
        if line.event != "heard":
            continue
        label = line.fields[0]
        now = place[label]
        if last is not None and now <= last and _certainly(posts[now], posts[last]):
            yield Violation(line.at, "order", f"{life} heard {label} after {posts[last].label}")
        missing = [] if last is None or gap else [p.label for p in posts[last + 1 : now] if p.returned is not None]
        if missing:
            yield Violation(
                line.at, "not heard", f"{life} did not hear {', '.join(missing[:3])}, and was told of no gap"
            )
        last, gap = (now if last is None else max(now, last)), False


def _certainly(first: Post, second: Post) -> bool:
    """Whether the first post was certainly made before the second, or is the same one."""
    return first is second or (first.returned is not None and first.returned < second.began)
