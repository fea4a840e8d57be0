"""How members of a group are to ask for messages of a topic: by pull or by pop (Java: MessageRequestModeManager).

This broker knows pull only and takes no such setting from anybody (401 is not answered). But its master, or a broker
that works in its folder after it, may be Apache's, so the table is copied, kept and handed on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gimbalmq.broker.json_file import Document, Saving, TableThread
from gimbalmq.protocol.fastjson import Rows
from gimbalmq.protocol.replication_bodies import RequestModeTable

Modes = dict[str, dict[str, dict[str, Any]]]


class RequestModes:
    """By topic, then by group."""

    def __init__(self, folder: Path, thread: TableThread | None = None) -> None:
        self.saving = Saving(folder / "messageRequestMode.json", self._document, thread)
        self._modes: Modes = {}

    def load(self) -> None:
        read: Callable[[Any], RequestModeTable] = RequestModeTable.of
        loaded = self.saving.file.load(read)
        if loaded is not None:
            self._modes = loaded.message_request_mode_map

    def _document(self) -> Document:
        return {"messageRequestModeMap": Rows(list(self._modes.items()))}

    def table(self) -> RequestModeTable:
        return RequestModeTable(message_request_mode_map=self._modes)

    def replace(self, table: RequestModeTable) -> None:
        """Takes another broker's table in the place of this one."""
        if table.message_request_mode_map != self._modes:
            self._modes = table.message_request_mode_map
            self.saving.soon()
