"""Plots as options of ECharts: the ownership picture, lines over time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from gimbalmq.dashboard.observer import Sample
from gimbalmq.dashboard.site import OWNER_COLOURS
from gimbalmq.model.queues import MessageQueue


def queue_name(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def short_names(members: Sequence[str]) -> dict[str, str]:
    """Member ids without what they all have in common before the ``@``."""
    heads = {member.partition("@")[0] for member in members}
    return {member: member.partition("@")[2] or member if len(heads) == 1 else member for member in members}


def ownership(sample: Sample) -> dict[str, Any]:
    """Queues by members: a cell where a member holds a queue, in the member's colour."""
    members = list(sample.members)
    queues = sorted({*sample.owners, *sample.ends})
    places = {member: index for index, member in enumerate(members)}
    names = short_names(members)
    cells = [
        {
            "value": [places[owner], row, 1],
            "itemStyle": {"color": OWNER_COLOURS[places[owner] % len(OWNER_COLOURS)]},
        }
        for row, queue in enumerate(queues)
        if (owner := sample.owners.get(queue)) in places
    ]
    return {
        "animationDuration": 300,
        "grid": {"left": 10, "right": 10, "top": 30, "bottom": 10, "containLabel": True},
        "xAxis": {
            "type": "category",
            "position": "top",
            "data": [names[member] for member in members],
            "splitArea": {"show": True},
            "axisLabel": {"interval": 0, "overflow": "truncate", "width": 140},
        },
        "yAxis": {
            "type": "category",
            "inverse": True,
            "data": [queue_name(queue) for queue in queues],
            "axisLabel": {"interval": "auto"},
        },
        "tooltip": {"show": False},
        "series": [
            {
                "type": "heatmap",
                "data": cells,
                "itemStyle": {"borderColor": "rgba(127,127,127,.35)", "borderWidth": 1},
                "progressive": 0,
            }
        ],
        "visualMap": {"show": False, "min": 0, "max": 1, "inRange": {"opacity": [1, 1]}},
    }


def lines(samples: Sequence[Sample], values: Mapping[str, Sequence[float]], unit: str) -> dict[str, Any]:
    """One line for each name, over the samples' times."""
    return {
        "animation": False,
        "grid": {"left": 10, "right": 16, "top": 36, "bottom": 10, "containLabel": True},
        "legend": {"type": "scroll", "top": 0},
        "tooltip": {"trigger": "axis"},
        "xAxis": {"type": "time"},
        "yAxis": {"type": "value", "name": unit, "minInterval": 1 if unit == "messages" else 0.1},
        "series": [
            {
                "name": name,
                "type": "line",
                "showSymbol": False,
                "data": [[sample.at_ms, value] for sample, value in zip(samples, series, strict=True)],
            }
            for name, series in values.items()
        ],
    }


def lag_lines(samples: Sequence[Sample], most: int = 12) -> dict[str, Any]:
    """Lag over time: the whole group, and the queues that are furthest behind."""
    if not samples:
        return lines((), {}, "messages")
    last = samples[-1]
    behind = sorted(last.done, key=lambda queue: last.done[queue] - last.ends.get(queue, 0))[:most]
    values: dict[str, list[float]] = {"all queues": [sample.lag for sample in samples]}
    for queue in behind:
        values[queue_name(queue)] = [
            max(0, sample.ends.get(queue, 0) - sample.done.get(queue, 0)) for sample in samples
        ]
    return lines(samples, values, "messages")


def rate_lines(samples: Sequence[Sample]) -> dict[str, Any]:
    """Messages a second written to and consumed from the group's queues."""
    written: list[float] = [0.0]
    consumed: list[float] = [0.0]
    for before, after in itertools.pairwise(samples):
        seconds = max(0.001, (after.at_ms - before.at_ms) / 1000)
        written.append(_grown(before.ends, after.ends) / seconds)
        consumed.append(_grown(before.done, after.done) / seconds)
    if not samples:
        return lines((), {}, "messages/s")
    return lines(samples, {"written": written, "consumed": consumed}, "messages/s")


def _grown(before: Mapping[MessageQueue, int], after: Mapping[MessageQueue, int]) -> int:
    return sum(max(0, place - before[queue]) for queue, place in after.items() if queue in before)
