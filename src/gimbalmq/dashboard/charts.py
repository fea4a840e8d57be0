"""Plots as options of ECharts: the ownership picture, lines over time.

Names come from elsewhere and are only ever values here: ECharts draws them on a canvas, tooltips too.
Keys that begin with a colon are code for the browser, and none of them is made from a name.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gimbalmq.dashboard.observer import EVERY_MEMBER, Change, Sample
from gimbalmq.model.queues import MessageQueue

OWNER_COLOURS = (
    "#2a78d4", "#e0842b", "#3f9e5a", "#c23b50", "#7d5bc4", "#1a9ba8",
    "#b08a1f", "#d0589b", "#6f9a2f", "#9c6a50", "#6f86a0", "#8b6fe0",
)  # fmt: skip
"""One for each member, on light and dark ground alike."""

MOST_LINES = 10
MOST_POINTS = 150
MOVED_MS = 5000
"""How long the picture shows where a queue came from."""

_TEXT = {":color": "Quasar.Dark.isActive ? '#c4ccd4' : '#47525d'"}
_LINE = {":color": "Quasar.Dark.isActive ? '#3a4149' : '#dde2e7'"}
_BANDS = {":color": "Quasar.Dark.isActive ? ['#1f242a', '#262c33'] : ['#f3f5f7', '#fafbfc']"}
_GAP: dict[str, object] = {"borderWidth": 3, ":borderColor": "Quasar.Dark.isActive ? '#1f242a' : '#f7f9fb'"}
_FRESH: dict[str, object] = {"borderWidth": 3, "borderColor": "#ffc400"}
_TOOLTIP = {
    "renderMode": "richText",
    "confine": True,
    ":backgroundColor": "Quasar.Dark.isActive ? '#2b3138' : '#ffffff'",
    "textStyle": _TEXT,
}


def queue_name(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def queue_names(queues: Iterable[MessageQueue]) -> dict[MessageQueue, str]:
    """Names of queues, without the topic where it is the same for all."""
    listed = list(queues)
    many = len({queue.topic for queue in listed}) > 1
    return {queue: queue_name(queue) if many else f"{queue.broker_name}/{queue.queue_id}" for queue in listed}


def short_names(members: Iterable[str]) -> dict[str, str]:
    """Member ids without the host before the ``@`` where it is the same for all."""
    listed = list(dict.fromkeys(members))
    heads = {member.partition("@")[0] for member in listed if "@" in member}
    short = {member: member.partition("@")[2] or member for member in listed}
    return (
        short
        if len(heads) == 1 and len(set(short.values())) == len(listed)
        else {name: name for name in listed}
    )


def colour(number: int) -> str:
    return OWNER_COLOURS[number % len(OWNER_COLOURS)]


def picture_height(sample: Sample) -> int:
    """Pixels: rows are lower where there are many."""
    rows = len(sample.queues)
    return max(110, (28 if rows <= 16 else 18 if rows <= 64 else 12) * rows + 60)


def ownership(
    sample: Sample,
    numbers: Mapping[str, int] | None = None,
    changes: Iterable[Change] = (),
    *,
    halved: bool = False,
) -> dict[str, Any]:
    """Queues by members: a cell where a member holds a queue, in the member's colour.

    A queue that has just moved is framed, and where it was stays an empty frame for some seconds.

    Args:
        numbers: the colour of each member; their order where not given.
        changes: the group's history.
        halved: two pictures share the width of a wide screen.
    """
    members = list(sample.members)
    queues = sample.queues
    places = {member: index for index, member in enumerate(members)}
    rows = {queue: index for index, queue in enumerate(queues)}
    colours = {member: colour((numbers or places).get(member, places[member])) for member in members}
    names = short_names(members)
    columns = max(1, len(members))
    room = "(innerWidth < 1024 ? innerWidth : innerWidth / 2)" if halved else "innerWidth"
    needed = columns * min(124, 14 + 7 * max(map(len, names.values()), default=0)) + 130
    fresh = {
        move.queue: move
        for change in changes
        if sample.at_ms - change.last_ms <= MOVED_MS
        for move in change.moves
        if move.queue in rows
    }
    cells: list[dict[str, Any]] = [
        {
            "value": [places[owner], rows[queue], 1],
            "itemStyle": {
                "color": colours[owner],
                "borderRadius": 5,
                **(_FRESH if queue in fresh else _GAP),
            },
        }
        for queue in queues
        for owner in (members if sample.owners.get(queue) == EVERY_MEMBER else [sample.owners.get(queue)])
        if owner in places and owner is not None
    ]
    cells += [
        {
            "value": [places[move.before], rows[queue], 0],
            "itemStyle": {
                "color": "rgba(0,0,0,0)",
                "borderColor": colours[move.before],
                "borderWidth": 2,
                "borderType": "dashed",
                "borderRadius": 5,
            },
        }
        for queue, move in fresh.items()
        if move.before in places and sample.owners.get(queue) != move.before
    ]
    return {
        "animationDuration": 200,
        "animationDurationUpdate": 200,
        "grid": {"left": 8, "right": 12, "top": 8, "bottom": 8, "containLabel": True},
        "xAxis": {
            "type": "category",
            "position": "top",
            "data": [names[member] for member in members],
            "splitArea": {"show": True, "areaStyle": _BANDS},
            "axisLine": {"lineStyle": _LINE},
            "axisTick": {"show": False},
            "axisLabel": {
                "interval": 0,
                "overflow": "truncate",
                # Names lie flat where the screen has room for them.
                ":width": f"Math.max(110, ({room} - 350) / {columns})",
                ":rotate": f"{room} < {needed} ? 35 : 0",
                **_TEXT,
            },
        },
        "yAxis": {
            "type": "category",
            "inverse": True,
            "data": list(queue_names(queues).values()),
            "axisLine": {"lineStyle": _LINE},
            "axisTick": {"show": False},
            "axisLabel": {"interval": "auto", "overflow": "truncate", "width": 150, **_TEXT},
        },
        "tooltip": {"show": False},
        "series": [{"type": "heatmap", "data": cells, "progressive": 0, "silent": True}],
        "visualMap": {"show": False, "min": 0, "max": 1, "inRange": {"opacity": [1, 1]}},
    }


def thinned(samples: Sequence[Sample], most: int = MOST_POINTS) -> list[Sample]:
    """At most so many samples, evenly over the time; always the first and the last."""
    if len(samples) <= most:
        return list(samples)
    first = samples[0].at_ms
    width = max(1, (samples[-1].at_ms - first) // (most - 2) + 1)
    kept: dict[int, Sample] = {}
    for sample in samples:
        kept[(sample.at_ms - first) // width] = sample  # the last one of each stretch
    return [samples[0], *(sample for sample in kept.values() if sample is not samples[0])]


def lines(
    times: Sequence[int], values: Mapping[str, Sequence[float]], unit: str, *, heavy: int = 1
) -> dict[str, Any]:
    """One line for each name over times; the first few are drawn heavier than the rest."""
    return {
        "animation": False,
        "grid": {"left": 8, "right": 18, "top": 56, "bottom": 8, "containLabel": True},
        "legend": {
            "type": "scroll",
            "top": 0,
            "icon": "roundRect",
            "itemWidth": 12,
            "itemHeight": 12,
            "textStyle": {"overflow": "truncate", "width": 150, **_TEXT},
            "pageTextStyle": _TEXT,
            ":pageIconColor": "Quasar.Dark.isActive ? '#c4ccd4' : '#47525d'",
        },
        "tooltip": {"trigger": "axis", **_TOOLTIP},
        "color": list(OWNER_COLOURS),
        "xAxis": {
            "type": "time",
            "axisLabel": {"hideOverlap": True, **_TEXT},
            "axisLine": {"lineStyle": _LINE},
        },
        "yAxis": {
            "type": "value",
            "name": unit,
            "nameTextStyle": {"align": "left", **_TEXT},
            "minInterval": 1 if unit == "messages" else 0.1,
            "axisLabel": _TEXT,
            "splitLine": {"lineStyle": _LINE},
        },
        "series": [
            {
                "name": name,
                "type": "line",
                "showSymbol": False,
                "lineStyle": {"width": 2.5 if number < heavy else 1},
                "data": [[time, round(value, 2)] for time, value in zip(times, series, strict=True)],
            }
            for number, (name, series) in enumerate(values.items())
        ],
    }


def lag_lines(samples: Sequence[Sample]) -> dict[str, Any]:
    """Lag over time: the whole group, and the queues that are furthest behind."""
    shown = thinned(samples)
    values: dict[str, list[float]] = {"all queues": [sample.lag for sample in shown]}
    if shown:
        behind = _most(shown[-1].done, shown[-1].lag_of)
        for queue, name in queue_names(behind).items():
            values[name] = [sample.lag_of(queue) for sample in shown]
    return lines([sample.at_ms for sample in shown], values, "messages")


def rate_lines(samples: Sequence[Sample]) -> dict[str, Any]:
    """Messages a second written to and consumed from the group's queues, and consumed from each."""
    shown = thinned(samples)
    steps = list(itertools.pairwise(shown))
    seconds = [max(0.001, (after.at_ms - before.at_ms) / 1000) for before, after in steps]

    def rates(grown: Callable[[Sample, Sample], int]) -> list[float]:
        return [grown(before, after) / passed for (before, after), passed in zip(steps, seconds, strict=True)]

    values = {
        "written": rates(lambda before, after: _grown(before.ends, after.ends)),
        "consumed": rates(lambda before, after: _grown(before.done, after.done)),
    }
    if steps:
        first, last = shown[0].done, shown[-1].done
        busiest = _most(last, lambda queue: last[queue] - first.get(queue, last[queue]))
        for queue, name in queue_names(busiest).items():
            values[name] = rates(
                lambda before, after, queue=queue: max(  # type: ignore[misc]
                    0, after.done.get(queue, 0) - before.done.get(queue, after.done.get(queue, 0))
                )
            )
    return lines([after.at_ms for _, after in steps], values, "messages/s", heavy=2)


def _most(
    queues: Iterable[MessageQueue], size: Callable[[MessageQueue], int], most: int = MOST_LINES
) -> list[MessageQueue]:
    """The largest few, in the order of queues."""
    return sorted(sorted(queues, key=lambda queue: (-size(queue), queue))[:most])


def _grown(before: Mapping[MessageQueue, int], after: Mapping[MessageQueue, int]) -> int:
    return sum(max(0, place - before[queue]) for queue, place in after.items() if queue in before)
