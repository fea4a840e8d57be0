"""The balance report as one HTML file: pictures inline, nothing fetched, light or dark as the reader's screen.

Rows of the tables in, text out; whatever a row says is escaped.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path
from typing import Any, Final

from gimbalmq.errors import ConfigError

Row = Mapping[str, Any]

TABLES: Final = ("holdings", "moves", "pauses", "duplicates", "skew", "lag")
MOST_ROWS: Final = 200
"""Of a table on the page; pictures show everything."""

_WIDTH, _LEFT, _RIGHT = 960, 150, 20
_ROW, _BAR = 24, 16
_COLOURS: Final = 8

_STYLE: Final = """
:root { color-scheme: light dark; --paper: #fcfcfa; --card: #ffffff; --ink: #1f2328; --soft: #636a72; --line: #dfe1e4;
  --c0: #2f6fb0; --c1: #d9822b; --c2: #3a8f5c; --c3: #b0457b; --c4: #7a62b8; --c5: #8a7a1f; --c6: #2a9aa0;
  --c7: #9b4a3a; --on: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --card: #1c2024; --ink: #e4e6e8; --soft: #9aa1a9;
  --line: #343a40; --c0: #6ea8e0; --c1: #f0a458; --c2: #6cc08c; --c3: #e083b0; --c4: #ab97e0; --c5: #cdbb55;
  --c6: #63c5ca; --c7: #d98874; --on: #14171a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto,
  "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 18px; margin: 40px 0 4px; }
h3 { font-size: 15px; margin: 26px 0 2px; }
p { margin: 2px 0 10px; color: var(--soft); max-width: 75ch; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(128px, 1fr)); gap: 10px; margin: 14px 0 6px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px; }
.tile b { display: block; font-size: 22px; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.picture { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px;
  overflow-x: auto; }
svg { display: block; width: 100%; min-width: 640px; height: auto; font-size: 12px; }
svg text { fill: var(--ink); } svg .soft { fill: var(--soft); } svg .on { fill: var(--on); font-size: 11px; }
svg .halo { paint-order: stroke; stroke: var(--card); stroke-width: 5px; stroke-linejoin: round; }
svg .grid { stroke: var(--line); } svg .fair { stroke: var(--ink); stroke-dasharray: 4 3; }
svg .move { stroke: var(--ink); stroke-width: 1.5; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 0 0 8px; font-size: 13px; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 6px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; width: 100%; background: var(--card); }
th, td { text-align: left; padding: 5px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
"""


def write_page(tables: Path, page: Path) -> Path:
    """Reads the tables, draws them, and puts the page in its place in one step.

    Raises:
        ConfigError: a table is missing.
        OSError: the page cannot be written.
    """
    text = render({name: _read(tables / name) for name in TABLES})
    page = page.expanduser().absolute()
    page.parent.mkdir(parents=True, exist_ok=True)
    handle, fresh = tempfile.mkstemp(dir=page.parent, suffix=".html")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(fresh, 0o644)
        os.replace(fresh, page)
    except BaseException:
        os.unlink(fresh)
        raise
    return page


def _read(table: Path) -> list[Row]:
    from pyarrow import parquet

    if not table.is_dir():
        raise ConfigError("tables", str(table), "there is no such table; run the pipeline first")
    rows: list[Row] = []
    for file in sorted(table.rglob("*.parquet")):
        rows += parquet.read_table(file).to_pylist()
    return rows


def render(tables: Mapping[str, Sequence[Row]]) -> str:
    """The page."""
    groups = sorted({str(row["group"]) for name in ("holdings", "lag") for row in tables.get(name, ())})
    parts = [_group(group, {name: _of(group, tables.get(name, ())) for name in TABLES}) for group in groups]
    if not parts:
        parts = ["<p>Nothing was recorded: see README.md of the project for how to.</p>"]
    ends = [_time(row[edge]) for row in tables.get("holdings", ()) for edge in ("since", "until")]
    when = f"{min(ends):%Y-%m-%d %H:%M:%S} to {max(ends):%Y-%m-%d %H:%M:%S} UTC" if ends else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Balance report</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>Balance report</h1>\n<p>{escape(when)}</p>\n{''.join(parts)}</main>\n</body>\n</html>\n"
    )


def _of(group: str, rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if str(row["group"]) == group]


def _group(group: str, tables: Mapping[str, list[Row]]) -> str:
    members = _members(tables["holdings"])
    holdings, moves = tables["holdings"], tables["moves"]
    parts = [f"<h2>Group {escape(group)}</h2>\n", _tiles(tables)]
    if holdings:
        begin = min(_time(row["since"]) for row in holdings)
        end = max(_time(row["until"]) for row in holdings)
        axis = _Axis(begin, max(end, begin + timedelta(seconds=1)))
        parts += [
            "<h3>Who held which queue</h3>\n<p>A line before a bar: the queue came from another member.</p>\n",
            _picture(_legend(members) + _timeline(holdings, members, axis)),
        ]
        if tables["lag"]:
            parts += [
                "<h3>Lag</h3>\n<p>Messages behind the newest, all queues of a topic together.</p>\n",
                _picture(_lag(tables["lag"], axis)),
            ]
    if tables["skew"]:
        parts += [
            "<h3>Skew</h3>\n<p>Messages each member consumed. The broken line is an equal share.</p>\n",
            _picture(_skew(tables["skew"], members)),
        ]
    parts.append(
        _pauses(tables["pauses"]) + _duplicates(tables["duplicates"], members) + _moves(moves, members)
    )
    return "".join(parts)


def _tiles(tables: Mapping[str, list[Row]]) -> str:
    holdings, moves = tables["holdings"], tables["moves"]
    queues = {(row["topic"], row["broker"], row["queue_id"]) for row in holdings}
    paused = [row["paused_seconds"] for row in moves if row["paused_seconds"] is not None]
    again = sum(row["redelivered"] or 0 for row in moves)
    shown = [
        (f"{len({row['member'] for row in holdings}):,}", "members"),
        (f"{len(queues):,}", "queues"),
        (f"{sum(row['messages'] or 0 for row in holdings):,}", "messages"),
        (f"{len(moves):,}", "queues moved"),
        (_seconds(max(paused)) if paused else "-", "longest pause"),
        (f"{again:,}", "delivered again"),
        (f"{max((row['lag'] or 0 for row in tables['lag']), default=0):,}", "highest lag"),
    ]
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for value, name in shown)
        + "</div>\n"
    )


# -- members -------------------------------------------------------------------------


def _members(holdings: Iterable[Row]) -> dict[str, tuple[str, int]]:
    """Client id to what it is called here and its colour, in order of appearance."""
    ids = [row["member"] for row in sorted(holdings, key=lambda row: (_time(row["since"]), row["member"]))]
    ids = list(dict.fromkeys(ids))
    short = [member.rpartition("@")[2] or member for member in ids]
    return {
        member: (name if short.count(name) == 1 else member, index % _COLOURS)
        for index, (member, name) in enumerate(zip(ids, short, strict=True))
    }


def _legend(members: Mapping[str, tuple[str, int]]) -> str:
    items = "".join(
        f'<span title="{escape(member)}"><i style="background:var(--c{colour})"></i>{escape(name)}</span>'
        for member, (name, colour) in members.items()
    )
    return f'<div class="legend">{items}</div>'


# -- pictures ------------------------------------------------------------------------


class _Axis:
    """Time from left to right."""

    def __init__(self, begin: datetime, end: datetime) -> None:
        self.begin, self.end = begin, end
        self.seconds = (end - begin).total_seconds()

    def x(self, at: datetime) -> float:
        part = (at - self.begin).total_seconds() / self.seconds
        return _LEFT + min(max(part, 0.0), 1.0) * (_WIDTH - _LEFT - _RIGHT)

    def ticks(self, top: float, bottom: float) -> str:
        steps = (
            0.1,
            0.2,
            0.5,
            1,
            2,
            5,
            10,
            15,
            30,
            60,
            120,
            300,
            600,
            900,
            1800,
            3600,
            7200,
            21_600,
            43_200,
            86_400,
        )
        step = next(
            (step for step in steps if self.seconds / step <= 10), 86_400 * (self.seconds // 864_000 + 1)
        )
        parts, second = [], 0.0
        while second <= self.seconds + 1e-9:
            x = self.x(self.begin + timedelta(seconds=second))
            parts.append(f'<path class="grid" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>')
            parts.append(
                f'<text class="soft" x="{x:.1f}" y="{bottom + 15:.1f}" text-anchor="middle">{_clock(second)}</text>'
            )
            second += step
        return "".join(parts)


def _picture(inner: str) -> str:
    return f'<div class="picture">{inner}</div>\n'


def _svg(height: float, label: str, inner: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{inner}</svg>'
    )


def _timeline(holdings: Sequence[Row], members: Mapping[str, tuple[str, int]], axis: _Axis) -> str:
    brokers = {row["broker"] for row in holdings}
    queues = sorted({(row["topic"], row["broker"], row["queue_id"]) for row in holdings})
    bottom = 6 + _ROW * len(queues)
    parts = [axis.ticks(6, bottom)]
    for index, queue in enumerate(queues):
        top = 6 + index * _ROW + (_ROW - _BAR) / 2
        topic, broker, number = queue
        name = f"{topic} {number}" if len(brokers) == 1 else f"{topic} {broker} {number}"
        parts.append(
            f'<text x="{_LEFT - 10}" y="{top + _BAR - 4:.1f}" text-anchor="end">{escape(_cut(name, 22))}</text>'
        )
        own = [row for row in holdings if (row["topic"], row["broker"], row["queue_id"]) == queue]
        for row in sorted(own, key=lambda row: _time(row["since"])):
            left, right = axis.x(_time(row["since"])), axis.x(_time(row["until"]))
            called, colour = members[row["member"]]
            told = f"{name}: {called}, {_stretch(row, axis)}, {row['messages'] or 0:,} messages"
            parts.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(right - left, 1):.1f}" height="{_BAR}" rx="2" '
                f'fill="var(--c{colour})"><title>{escape(told)}</title></rect>'
            )
            if right - left > 7 * len(called) + 8:
                parts.append(
                    f'<text class="on" x="{left + 5:.1f}" y="{top + 12:.1f}">{escape(called)}</text>'
                )
            if row["previous_member"] is not None and row["previous_member"] != row["member"]:
                parts.append(f'<path class="move" d="M{left:.1f} {top - 2:.1f}v{_BAR + 4}"/>')
    return _svg(bottom + 24, "Owners of the queues over time", "".join(parts))


def _stretch(row: Row, axis: _Axis) -> str:
    since, until = ((_time(row[edge]) - axis.begin).total_seconds() for edge in ("since", "until"))
    return f"{_clock(since)} to {_clock(until)}"


def _lag(rows: Sequence[Row], axis: _Axis) -> str:
    height, top = 150.0, 10.0
    most = _round_up(max(1, *(row["lag"] or 0 for row in rows)))
    parts = [axis.ticks(top, top + height)]
    for step in range(3):
        y = top + height - height * step / 2
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(
            f'<text class="soft" x="{_LEFT - 10}" y="{y + 4:.1f}" text-anchor="end">{most * step / 2:,.0f}</text>'
        )
    topics = sorted({row["topic"] for row in rows})
    legend = []
    for index, topic in enumerate(topics):
        colour = index % _COLOURS
        own = sorted((row for row in rows if row["topic"] == topic), key=lambda row: _time(row["at"]))
        path = " ".join(
            f"{'ML'[bool(number)]}{axis.x(_time(row['at'])):.1f} {top + height * (1 - (row['lag'] or 0) / most):.1f}"
            for number, row in enumerate(own)
        )
        parts.append(
            f'<path d="{path}" fill="none" stroke="var(--c{colour})" stroke-width="2" stroke-linejoin="round">'
            f"<title>{escape(topic)}</title></path>"
        )
        legend.append(f'<span><i style="background:var(--c{colour})"></i>{escape(topic)}</span>')
    return f'<div class="legend">{"".join(legend)}</div>' + _svg(
        top + height + 24, "Lag of each topic over time", "".join(parts)
    )


def _skew(rows: Sequence[Row], members: Mapping[str, tuple[str, int]]) -> str:
    parts, top = [], 4.0
    widest = _WIDTH - _LEFT - _RIGHT - 170
    for topic in sorted({row["topic"] for row in rows}):
        own = sorted((row for row in rows if row["topic"] == topic), key=lambda row: -(row["messages"] or 0))
        most = max(1, *(row["messages"] or 0 for row in own))
        parts.append(f'<text class="soft" x="{_LEFT}" y="{top + 12:.1f}">{escape(topic)}</text>')
        top += 18
        fair = _LEFT + sum(row["messages"] or 0 for row in own) / len(own) / most * widest
        line = f'<path class="fair" d="M{fair:.1f} {top - 3:.1f}v{_ROW * len(own)}"/>'
        texts = []
        for row in own:
            called, colour = members.get(row["member"], (row["member"], 0))
            count = row["messages"] or 0
            length = count / most * widest
            share = "" if row["of_fair_share"] is None else f", {row['of_fair_share']:.2f} of an equal share"
            parts.append(
                f'<text x="{_LEFT - 10}" y="{top + 12:.1f}" text-anchor="end">{escape(_cut(called, 22))}</text>'
                f'<rect x="{_LEFT}" y="{top:.1f}" width="{length:.1f}" height="{_BAR}" rx="2" '
                f'fill="var(--c{colour})"/>'
            )
            texts.append(
                f'<text class="soft halo" x="{_LEFT + length + 6:.1f}" y="{top + 12:.1f}">{count:,}{share}</text>'
            )
            top += _ROW
        parts += [line, *texts]  # in this order, so that numbers stay readable
        top += 8
    return _svg(top, "Messages consumed by each member", "".join(parts))


# -- tables --------------------------------------------------------------------------


class _Right(str):
    """A cell that stands right, as numbers do."""

    __slots__ = ()


def _table(title: str, about: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Cells are escaped."""

    def cell(value: object, kind: str, like: object) -> str:
        text = f"{value:,}" if isinstance(value, int) else str(value)
        right = ' class="n"' if isinstance(like, int | _Right) else ""
        return f"<{kind}{right}>{escape(text)}</{kind}>"

    shown = rows[:MOST_ROWS]
    more = f"<p>The first {MOST_ROWS} of {len(rows):,}.</p>" if len(rows) > MOST_ROWS else ""
    head = "".join(cell(name, "th", like) for name, like in zip(heads, shown[0], strict=True))
    body = "\n".join(f"<tr>{''.join(cell(value, 'td', value) for value in row)}</tr>" for row in shown)
    return (
        f"<h3>{escape(title)}</h3>\n<p>{escape(about)}</p>\n"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>{more}\n'
    )


def _pauses(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    return _table(
        "Pauses",
        "How long moved queues stood still.",
        ("topic", "moved", "mean", "95 of 100 within", "longest"),
        [
            (
                row["topic"],
                row["moved"],
                _seconds(row["mean_seconds"]),
                _seconds(row["p95_seconds"]),
                _seconds(row["longest_seconds"]),
            )
            for row in sorted(rows, key=lambda row: row["topic"])
        ],
    )


def _duplicates(rows: Sequence[Row], members: Mapping[str, tuple[str, int]]) -> str:
    if not rows:
        return "<h3>Duplicates</h3>\n<p>None was delivered again.</p>\n"
    return _table(
        "Duplicates",
        "Messages delivered again because their queue moved before they were committed, or seen again by one member.",
        ("topic", "member", "kind", "messages"),
        [
            (
                row["topic"],
                members.get(row["member"], (row["member"], 0))[0],
                row["kind"],
                int(row["messages"] or 0),
            )
            for row in sorted(rows, key=lambda row: (row["topic"], row["member"], row["kind"]))
        ],
    )


def _moves(rows: Sequence[Row], members: Mapping[str, tuple[str, int]]) -> str:
    if not rows:
        return "<h3>Moved queues</h3>\n<p>No queue changed hands.</p>\n"

    def called(member: str) -> str:
        return members.get(member, (member, 0))[0]

    return _table(
        "Moved queues",
        "Every queue that changed hands.",
        ("time", "queue", "from", "to", "stood still", "delivered again", "reason"),
        [
            (
                f"{_time(row['at']):%H:%M:%S}",
                f"{row['topic']} {row['queue_id']}",
                called(row["from_member"]),
                called(row["to_member"]),
                _seconds(row["paused_seconds"]),
                int(row["redelivered"] or 0),
                row["reason"] or "",
            )
            for row in sorted(rows, key=lambda row: (_time(row["at"]), row["topic"], row["queue_id"]))
        ],
    )


# -- values --------------------------------------------------------------------------


def _time(value: datetime) -> datetime:
    """Parquet gives times of Spark's with or without their zone, which is UTC."""
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def _seconds(value: float | None) -> _Right:
    if value is None:
        return _Right("-")
    return _Right(f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s")


def _clock(second: float) -> str:
    if second < 60:
        return f"{second:g} s" if second == round(second, 1) else f"{second:.1f} s"
    minutes, rest = divmod(round(second), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _round_up(value: float) -> float:
    """1, 2 or 5 and zeros, or twice that: halves stay whole if they can."""
    power = 1
    while True:
        for step in (2, 4, 6, 10):
            if step * power >= value:
                return step * power
        power *= 10


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
