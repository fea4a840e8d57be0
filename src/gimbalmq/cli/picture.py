"""The picture of a simulated day, as SVG text: no library, nothing but lines and labels."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import cycle
from math import ceil, log10

from gimbalmq.balance.simulate import Rebalance, Report

COLOURS = {"AVG": "#c1440e", "AVG_BY_CIRCLE": "#0b6e99", "CONSISTENT_HASH": "#7b5ea7", "STICKY": "#2e7d32"}
OTHERS = ("#8d6e00", "#00796b", "#ad1457", "#555555")
INK, FAINT, PAPER = "#222222", "#dddddd", "#fdfdfb"

WIDTH, LEFT, RIGHT = 940, 88, 290
MOVED_TOP, MOVED_HIGH = 70, 300
GROUP_TOP, GROUP_HIGH = 420, 80
HOURS = 24


def day_svg(title: str, reports: Sequence[Report]) -> str:
    """Queues moved in the course of the day, one line per strategy, above the size of the group."""
    high = GROUP_TOP + GROUP_HIGH + 58
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high}" width="{WIDTH}" height="{high}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{high}" fill="{PAPER}"/>',
        _text(LEFT, 26, "Queues moved in a day", size=17, weight="bold"),
        _text(LEFT, 46, title),
    ]
    lines = [
        (report.strategy, _running(report, "moved"), colour, "") for report, colour in _coloured(reports)
    ]
    even = [report for report in reports if report.worst_spread <= 1]
    if even:
        least = min(even, key=lambda report: report.minimum)
        lines.append(("least for even shares", _running(least, "minimum"), INK, "5 4"))
    top = _round_up(max((values[-1][1] for _, values, _, _ in lines), default=1))
    parts += _frame(MOVED_TOP, MOVED_HIGH, top, "queues moved so far")
    ends = _apart([_y(values[-1][1], top, MOVED_TOP, MOVED_HIGH) for _, values, _, _ in lines])
    told = {report.strategy: f" ({report.ratio:.1f}x, spread {report.worst_spread})" for report in reports}
    for (name, values, colour, dash), end in zip(lines, ends, strict=True):
        parts.append(_steps(values, top, MOVED_TOP, MOVED_HIGH, colour, dash))
        label = f"{name} {values[-1][1]:,}{told.get(name, '')}"
        parts.append(_text(WIDTH - RIGHT + 8, end + 4, label, colour=colour))
    members = [(outcome.at, outcome.members) for outcome in reports[0].outcomes] if reports else []
    if members:
        most = _round_up(max(count for _, count in members))
        parts += _frame(GROUP_TOP, GROUP_HIGH, most, "members", steps=2)
        parts.append(_steps([(0, members[0][1]), *members], most, GROUP_TOP, GROUP_HIGH, INK, ""))
    parts += [
        _text(_x(hour * 3600), GROUP_TOP + GROUP_HIGH + 18, f"{hour}:00", anchor="middle")
        for hour in range(0, HOURS + 1, 4)
    ]
    parts.append(
        _text((LEFT + WIDTH - RIGHT) / 2, GROUP_TOP + GROUP_HIGH + 40, "time of day", anchor="middle")
    )
    return "\n".join([*parts, "</svg>", ""])


def _coloured(reports: Sequence[Report]) -> list[tuple[Report, str]]:
    spare = cycle(OTHERS)
    return [(report, COLOURS.get(report.strategy) or next(spare)) for report in reports]


def _running(report: Report, name: str) -> list[tuple[float, int]]:
    """(second, total so far) after each change."""
    values, total = [(0.0, 0)], 0
    for outcome in sorted(report.outcomes, key=_when):
        total += getattr(outcome, name)
        values.append((outcome.at, total))
    return values


def _when(outcome: Rebalance) -> float:
    return outcome.at


def _round_up(value: float) -> int:
    """A round number that is not smaller, and whose quarters are round too."""
    power = 10 ** int(log10(max(1, value)))
    return int(
        next(step * power for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if step * power >= value)
    )


def _x(second: float) -> float:
    return LEFT + min(second / (HOURS * 3600), 1.0) * (WIDTH - RIGHT - LEFT)


def _y(value: float, top: float, start: float, high: float) -> float:
    return start + high - value / top * high


def _frame(start: float, high: float, top: int, label: str, steps: int = 4) -> list[str]:
    parts = []
    for step in range(steps + 1):
        value = ceil(top * step / steps)
        y = _y(value, top, start, high)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{FAINT}"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{value:,}", anchor="end"))
    for hour in range(0, HOURS + 1, 4):
        x = _x(hour * 3600)
        parts.append(f'<path d="M{x:.1f} {start}v{high}" stroke="{FAINT}"/>')
    middle = start + high / 2
    parts.append(
        f'<text transform="translate(20 {middle:.1f}) rotate(-90)" text-anchor="middle" fill="{INK}">{label}</text>'
    )
    return parts


def _steps(
    values: Sequence[tuple[float, int]], top: float, start: float, high: float, colour: str, dash: str
) -> str:
    """A line that keeps its height until the next change."""
    path = f"M{_x(values[0][0]):.1f} {_y(values[0][1], top, start, high):.1f}"
    path += "".join(f"H{_x(at):.1f}V{_y(value, top, start, high):.1f}" for at, value in values[1:])
    path += f"H{WIDTH - RIGHT}"
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'


def _apart(places: Sequence[float], gap: float = 18.0) -> list[float]:
    """The same heights, moved so that labels do not overlap; none below the frame."""
    order = sorted(range(len(places)), key=lambda index: -places[index])
    found = list(places)
    lowest = MOVED_TOP + MOVED_HIGH + gap / 2
    for index in order:
        found[index] = min(places[index], lowest - gap / 2)
        lowest = found[index] - gap / 2
    return found


def _text(
    x: float,
    y: float,
    text: str,
    *,
    colour: str = INK,
    size: int = 12,
    weight: str = "normal",
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )
