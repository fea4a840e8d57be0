"""How fast a consumer pulls and consumes, by topic: the ``statusTable`` in the answer to request 307."""

from __future__ import annotations

from collections import deque

from gimbalmq.protocol.status_bodies import ConsumeRates

SAMPLE_SECONDS = 10.0
_SAMPLES = 6


class Rates:
    """Counts since the start, sampled every 10 s; rates are those of the last minute."""

    def __init__(self, now: float) -> None:
        self._totals: dict[str, list[float]] = {}
        self._samples: deque[tuple[float, dict[str, list[float]]]] = deque([(now, {})], maxlen=_SAMPLES)

    def consumed(self, topic: str, ok: int, failed: int, seconds: float) -> None:
        totals = self._of(topic)
        totals[0] += ok
        totals[1] += failed
        totals[2] += seconds

    def pulled(self, topic: str, messages: int, seconds: float) -> None:
        totals = self._of(topic)
        totals[3] += 1
        totals[4] += messages
        totals[5] += seconds

    def _of(self, topic: str) -> list[float]:
        totals = self._totals.get(topic)
        if totals is None:
            totals = self._totals[topic] = [0, 0, 0.0, 0, 0, 0.0]
        return totals

    def sample(self, now: float) -> None:
        """Remembers where the counts stand."""
        self._samples.append((now, {topic: list(totals) for topic, totals in self._totals.items()}))

    def of(self, topic: str, now: float) -> ConsumeRates:
        since, samples = self._samples[0]
        before = samples.get(topic, [0.0] * 6)
        ok, failed, consuming, pulls, messages, pulling = (
            later - earlier for later, earlier in zip(self._of(topic), before, strict=True)
        )
        seconds = max(now - since, 0.001)
        return ConsumeRates(
            consume_failed_msgs=int(self._of(topic)[1]),
            consume_failed_tps=failed / seconds,
            consume_ok_tps=ok / seconds,
            consume_rt=1000 * consuming / max(ok + failed, 1),
            pull_rt=1000 * pulling / max(pulls, 1),
            pull_tps=messages / seconds,
        )
