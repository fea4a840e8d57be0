"""Telling the members of groups that something changed, each group only so often.

A thousand clients that start together change their group a thousand times; if each change were told to each member
at once, that would be a million requests. So a change of a large group is told at once, and those of the next moment
together at its end; and of many members some are told in each turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque

from gimbalmq.broker.clients import Consumers
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import ONEWAY_FLAG, RemotingCommand
from gimbalmq.protocol.headers.groups import GroupOnly
from gimbalmq.protocol.serializers import encode_frame
from gimbalmq.transport.channel import Channel

SMALL_GROUP = 16
"""A group with no more members is told of every change at once."""

QUIET_SECONDS_PER_MEMBER = 0.0002
"""Between two notices of a larger one: telling it takes about a tenth of the time at most."""

NOTICES_PER_TURN = 64


class GroupNotices:
    """Request 40, NOTIFY_CONSUMER_IDS_CHANGED."""

    def __init__(self, consumers: Consumers) -> None:
        self._consumers = consumers
        self._quiet: dict[str, bool] = {}
        """Large groups that were told a moment ago, and whether they have changed since."""
        self._outbox: deque[tuple[bytes, deque[Channel]]] = deque()
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._quiet) + len(self._outbox)

    def tell(self, group: str) -> None:
        """Its membership or topics changed."""
        if group in self._quiet:
            self._quiet[group] = True
        else:
            self._post(group)

    def _post(self, group: str) -> None:
        found = self._consumers.group(group)
        if found is None or not found.members:
            return
        if len(found.members) > SMALL_GROUP:
            self._quiet[group] = False
            seconds = QUIET_SECONDS_PER_MEMBER * len(found.members)
            asyncio.get_running_loop().call_later(seconds, self._quiet_over, group)
        # One frame for all: nobody answers it, so nobody looks at its number.
        command = RemotingCommand(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            GroupOnly(consumer_group=group).to_ext(),
            flag=ONEWAY_FLAG,
        )
        self._outbox.append((encode_frame(command), deque(found.members)))
        if not self._scheduled:
            self._send_some()

    def _quiet_over(self, group: str) -> None:
        if self._quiet.pop(group):
            self._post(group)

    def _send_some(self) -> None:
        self._scheduled = False
        left = NOTICES_PER_TURN
        while left and self._outbox:
            frame, channels = self._outbox[0]
            while left and channels:
                channels.popleft().send_bytes(frame)
                left -= 1
            if not channels:
                self._outbox.popleft()
        if self._outbox:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send_some)
