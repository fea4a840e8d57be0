"""Queue mappings of static topics, as brokers tell them: kept for clients, not understood here, bounded in bytes."""

from __future__ import annotations

from typing import Any

import msgspec

from gimbalmq._steps import Steps
from gimbalmq.nameserver.registration import Registration

_MAPPING_BYTES = 16 * 1024 * 1024
_STEP_BYTES = 128 * 1024


class QueueMappings:
    """By topic and broker name."""

    def __init__(self) -> None:
        self._by_topic: dict[str, dict[str, Any]] = {}
        self._bytes = 0

    def of(self, topic: str) -> dict[str, Any] | None:
        """A copy, by broker name; None if the topic is not static."""
        found = self._by_topic.get(topic)
        return None if found is None else dict(found)

    def take(self, registration: Registration, refused: list[str]) -> Steps[None]:
        """Takes what has room; why something was ``refused`` is added there."""
        count = stepped = 0
        for topic, mapping in registration.queue_mappings.items():
            owner = mapping.get("bname") if isinstance(mapping, dict) else None
            by_owner, size = str(owner or registration.broker_name), _size(mapping)
            self.forget(topic, by_owner)
            if self._bytes + size > _MAPPING_BYTES:
                count += 1
                continue
            self._by_topic.setdefault(topic, {})[by_owner] = mapping
            self._bytes += size
            stepped += size
            if stepped >= _STEP_BYTES:
                stepped = 0
                yield
        if count:
            refused.append(
                f"{count} queue mappings of broker {registration.broker_name} are not registered: this name server "
                f"keeps {_MAPPING_BYTES} bytes of them and has {self._bytes}"
            )

    def forget(self, topic: str, name: str) -> None:
        """That of one broker."""
        mappings = self._by_topic.get(topic)
        if mappings is not None:
            if name in mappings:
                self._bytes -= _size(mappings.pop(name))
            if not mappings:
                del self._by_topic[topic]

    def forget_topic(self, topic: str) -> None:
        """Those of all brokers."""
        for name in list(self._by_topic.get(topic, ())):
            self.forget(topic, name)


def _size(mapping: object) -> int:
    return len(msgspec.json.encode(mapping))
