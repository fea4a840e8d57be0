"""What records of the timer topic say: when they are due, and which timers they take back (pure)."""

from __future__ import annotations

from gimbalmq.model import properties as prop
from gimbalmq.model.record import Record


def due_ms(record: Record) -> int:
    """When the record's message is due; 0 if it does not say.

    Apache's broker notes the second in which it looks at the timer, which is up to a second before the time the
    client gave: that time counts.
    """
    properties = record.properties
    due = _number(properties.get(prop.TIMER_OUT_MS))
    exact = _number(properties.get(prop.TIMER_DELIVER_MS))
    if not exact:
        delay = _number(properties.get(prop.TIMER_DELAY_SEC)) * 1000 or _number(
            properties.get(prop.TIMER_DELAY_MS)
        )
        exact = record.store_timestamp + delay if delay else 0
    return exact if due < exact <= due + 1000 else due


def deleted_by(record: Record, *, only_own_topic: bool) -> str:
    """The key of the timer that a message takes back."""
    key = record.properties.get(prop.TIMER_DELETE_UNIQ_KEY, "")
    of_topic = f"{record.properties.get(prop.REAL_TOPIC)}+"
    return f"{of_topic}{key}" if only_own_topic and not key.startswith(of_topic) else key


def is_deleted(record: Record, deleted: set[str]) -> bool:
    """Whether one of these keys is its own."""
    key = record.properties.get(prop.UNIQ_KEY, "")
    return key in deleted or f"{record.properties.get(prop.REAL_TOPIC)}+{key}" in deleted


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else 0
