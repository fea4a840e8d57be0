"""Messages by id and by key, and ends of transactions."""

from __future__ import annotations

from functools import partial

from gimbalmq.broker.stored import stored_record
from gimbalmq.broker.transactions import COMMIT, ROLLBACK, Transactions
from gimbalmq.broker.upkeep import Upkeep
from gimbalmq.errors import QueryNotFoundError, ResponseError
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.messages import (
    EndTransaction,
    QueryMessage,
    QueryMessageReply,
    ViewMessage,
)
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.channel import Answer, Channel, Handlers

_UNIQUE_KEY_LIMIT = 32


class QueryHandlers:
    """Java: QueryMessageProcessor, EndTransactionProcessor."""

    def __init__(self, store: MessageStore, transactions: Transactions, upkeep: Upkeep) -> None:
        self._store = store
        self._upkeep = upkeep
        self._transactions = transactions

    def register(self, handlers: Handlers) -> None:
        handlers.add(RequestCode.VIEW_MESSAGE_BY_ID, self.by_id)
        handlers.add(RequestCode.QUERY_MESSAGE, self.by_key)
        handlers.add(RequestCode.END_TRANSACTION, self.end_transaction)

    def by_id(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = ViewMessage.from_ext(request.ext_fields)
        # The gate has asked for the rights to the cluster, if it is a raw one.
        find = self._store.record_at if header.raw else partial(stored_record, self._store)
        record = find(header.offset)
        if record is None:
            raise ResponseError(f"can not find message by the offset, {header.offset}")
        return request.reply(body=record)

    async def by_key(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = QueryMessage.from_ext(request.ext_fields)
        most = _UNIQUE_KEY_LIMIT if header.unique_key_query else header.max_num
        found = await self._upkeep.query(
            header.topic, header.key, most, header.begin_timestamp, header.end_timestamp
        )
        fields = QueryMessageReply(
            index_last_update_timestamp=found.index_last_update_timestamp,
            index_last_update_phyoffset=found.index_last_update_phyoffset,
        ).to_ext()
        if not found.records:
            raise QueryNotFoundError("can not find message, maybe time range not correct")
        return request.reply(ext_fields=fields, body=b"".join(found.records))

    def end_transaction(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = EndTransaction.from_ext(request.ext_fields)
        if header.commit_or_rollback not in (COMMIT, ROLLBACK):
            # "Unknown": the half stays open and is asked about again.
            return None
        self._transactions.end(header)
        return request.reply()
