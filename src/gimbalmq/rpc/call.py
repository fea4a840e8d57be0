"""How a typed call is made: header in, checked answer out."""

from __future__ import annotations

from typing import Protocol

from gimbalmq.errors import ResponseError
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.base import Header


class Caller(Protocol):
    """What rpc needs of a transport; ``transport.pool.ChannelPool`` is one."""

    async def call(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand: ...

    async def oneway(self, address: str, command: RemotingCommand) -> None: ...


async def ask(
    caller: Caller,
    address: str,
    code: int,
    header: Header | None = None,
    body: bytes = b"",
    *,
    timeout: float = 3.0,
    accept: tuple[int, ...] = (0,),
) -> RemotingCommand:
    """Sends one request and returns its answer.

    Raises:
        ResponseError: the answer's code is not in ``accept``.
        TransportError: no answer.
    """
    request = RemotingCommand(code, None if header is None else header.to_ext(), body)
    answer = await caller.call(address, request, timeout)
    if answer.code not in accept:
        raise ResponseError.for_code(answer.code, answer.remark, address)
    return answer


async def tell(
    caller: Caller, address: str, code: int, header: Header | None = None, body: bytes = b""
) -> None:
    """Sends one request that nobody answers."""
    await caller.oneway(address, RemotingCommand(code, None if header is None else header.to_ext(), body))
