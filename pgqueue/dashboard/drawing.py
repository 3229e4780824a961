"""Charts and graphs as SVG, drawn on the server: they need no script, and each number is in a title and in a table.

A drawing has no colour of its own. Its classes have, in dashboard.css, for both colour schemes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup

from .showing import duration, number

WIDTH, HEIGHT = 640, 160  # units of a chart's view box
LEFT, BOTTOM = 52, 20  # room for the labels
SPARK_WIDTH, SPARK_HEIGHT = 96, 22
NODE_WIDTH, NODE_HEIGHT, GAP_X, GAP_Y = 132, 34, 56, 14

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: its title, its SVG, and for each line its name, its latest value and its largest one, as texts."""

    title: str
    svg: Markup
    lines: list[tuple[str, str, str]]


def chart(
    title: str,
    at: Sequence[datetime],
    lines: Mapping[str, Values],
    kind: str,
    times: str = "%H:%M",
    width: int = WIDTH,
) -> Chart:
    """Lines over time.

    Args:
        title: its name.
        at: the times.
        lines: the values of each line, by its name.
        kind: how values are shown, as `number` or `duration`.
        times: how times are shown, as for strftime.
        width: of its view box. A narrow chart has larger letters.
    """
    shown = duration if kind == "duration" else number
    top = max((value for values in lines.values() for value in values if value is not None), default=0) or 1.0
    drawn = Markup("").join(
        Markup('<polyline class="line line-{}" points="{}"><title>{}</title></polyline>').format(
            n, _points(at, values, top, width), name
        )
        for n, (name, values) in enumerate(lines.items())
    )
    told = [(name, shown(_last(values)), shown(_most(values))) for name, values in lines.items()]
    first, last = at[0].strftime(times), at[-1].strftime(times)
    svg = Markup(
        '<svg class="chart" viewBox="0 0 {w} {h}" role="img"><title>{title}</title><desc>{about}</desc>'
        '<line class="axis" x1="{left}" x2="{w}" y1="{base}" y2="{base}"/>'
        '<line class="axis faint" x1="{left}" x2="{w}" y1="8" y2="8"/>'
        '<text x="{label}" y="13" text-anchor="end">{top}</text><text x="{label}" y="{base}" text-anchor="end">0</text>'
        '<text x="{left}" y="{h}">{first}</text><text x="{w}" y="{h}" text-anchor="end">{last}</text>{drawn}</svg>'
    ).format(
        w=width,
        h=HEIGHT,
        left=LEFT,
        label=LEFT - 6,
        base=HEIGHT - BOTTOM,
        title=title,
        about=f"From {first} to {last}. "
        + "; ".join(f"{name}: {now} last, {most} at most" for name, now, most in told),
        top=shown(top),
        first=first,
        last=last,
        drawn=drawn,
    )
    return Chart(title, svg, told)


def spark(title: str, values: Sequence[float]) -> Markup:
    """A small line without axes, for a cell of a table. Its lowest value is 0."""
    if len(values) < 2:
        return Markup("")
    top, step = max(values) or 1.0, SPARK_WIDTH / (len(values) - 1)
    points = " ".join(
        f"{n * step:.1f},{1 + (SPARK_HEIGHT - 2) * (1 - value / top):.1f}" for n, value in enumerate(values)
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" role="img"><title>{title}: {last} last, {most} at most</title>'
        '<polyline class="line line-0" points="{points}"/></svg>'
    ).format(
        w=SPARK_WIDTH,
        h=SPARK_HEIGHT,
        title=title,
        last=number(values[-1]),
        most=number(max(values)),
        points=points,
    )


def histogram(counts: Sequence[int] | None, bounds: Sequence[float]) -> list[tuple[str, int, float]]:
    """The buckets of a histogram that matter: the upper bound in words, the number, and its share of the largest.

    Each bucket has the values between the bound before and its own; the last one has the rest.
    """
    if not counts or not any(counts):
        return []
    used = [n for n, count in enumerate(counts) if count]
    most = max(counts)
    names = [f"≤ {duration(bound)}" for bound in bounds] + [f"> {duration(bounds[-1])}"]
    return [(names[n], counts[n], counts[n] / most) for n in range(used[0], used[-1] + 1)]


def graph(id: int, states: Mapping[int, str], edges: Sequence[tuple[int, int]]) -> Markup | None:
    """Tasks as boxes from left to right, each behind those that it waits for; None for a task without any.

    Args:
        id: the task whose page this is.
        states: the state of each task.
        edges: pairs of a task and one that waits for it.
    """
    if not edges:
        return None
    layers = _layers(states, edges)
    columns: dict[int, list[int]] = {}
    for node in sorted(states):
        columns.setdefault(layers[node], []).append(node)
    place = {
        node: (8 + layer * (NODE_WIDTH + GAP_X), 8 + row * (NODE_HEIGHT + GAP_Y))
        for layer, column in columns.items()
        for row, node in enumerate(column)
    }
    width = 16 + (max(columns) + 1) * (NODE_WIDTH + GAP_X) - GAP_X
    height = 16 + max(len(column) for column in columns.values()) * (NODE_HEIGHT + GAP_Y) - GAP_Y
    arrows = Markup("").join(_arrow(place[one], place[other]) for one, other in edges)
    boxes = Markup("").join(_box(node, place[node], states[node], node == id) for node in sorted(states))
    return Markup(
        '<svg class="graph" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="group" aria-label="Flow">{}{}</svg>'
    ).format(arrows, boxes, w=width, h=height)


def _layers(states: Mapping[int, str], edges: Sequence[tuple[int, int]]) -> dict[int, int]:
    """The column of each task: behind all that it waits for. At most as many rounds as tasks."""
    layers = dict.fromkeys(states, 0)
    for _ in states:
        behind = {other: layers[one] + 1 for one, other in sorted(edges, key=lambda edge: layers[edge[0]])}
        moved = {node: layer for node, layer in behind.items() if layer > layers[node]}
        if not moved:
            break
        layers |= moved
    return layers


def _arrow(one: tuple[int, int], other: tuple[int, int]) -> Markup:
    x1, y1 = one[0] + NODE_WIDTH, one[1] + NODE_HEIGHT // 2
    x2, y2 = other[0], other[1] + NODE_HEIGHT // 2
    bend = max((x2 - x1) // 2, 20)
    return Markup('<path class="arrow" d="M{} {} C{} {} {} {} {} {}"/>').format(
        x1, y1, x1 + bend, y1, x2 - bend, y2, x2, y2
    )


def _box(node: int, place: tuple[int, int], state: str, here: bool) -> Markup:
    x, y = place
    return Markup(
        '<a href="task?id={id}"{current}>'
        '<rect class="box state-{state}" x="{x}" y="{y}" width="{w}" height="{h}" rx="6"/>'
        '<text x="{tx}" y="{ty}">{id} {state}</text></a>'
    ).format(
        id=node,
        state=state,
        current=Markup(' aria-current="page"') if here else "",
        x=x,
        y=y,
        w=NODE_WIDTH,
        h=NODE_HEIGHT,
        tx=x + 10,
        ty=y + 22,
    )


def _points(at: Sequence[datetime], values: Values, top: float, width: int) -> str:
    span = (at[-1] - at[0]).total_seconds() or 1.0
    base = HEIGHT - BOTTOM
    return " ".join(
        f"{LEFT + (width - LEFT) * (moment - at[0]).total_seconds() / span:.1f},{base - (base - 8) * value / top:.1f}"
        for moment, value in zip(at, values, strict=True)
        if value is not None
    )


def _last(values: Values) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def _most(values: Values) -> float | None:
    return max((value for value in values if value is not None), default=None)
