"""Messages that take effect only if a local transaction does.

python examples/transactions.py

The third transaction does not know its outcome when asked: the broker asks again later (after 6 s, looking
every 30 s; `gimbalmq server --set transactionTimeOut=500 --set transactionCheckInterval=500` is quicker).
"""

from __future__ import annotations

import argparse
import asyncio

from gimbalmq import (
    ConsumeFromWhere,
    Message,
    MessageView,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)


def book(message: Message) -> TransactionState:
    """The local transaction; a plain function runs in a thread, so it may use a blocking database."""
    if message.body == b"transfer 2":
        print("transfer 2: not enough money, rolled back")
        return TransactionState.ROLLBACK
    if message.body == b"transfer 3":
        print("transfer 3: booked, but the answer got lost")
        return TransactionState.UNKNOWN
    print(f"{message.body.decode()}: booked")
    return TransactionState.COMMIT


def look_up(message: MessageView) -> TransactionState:
    """The broker did not hear what became of this transaction: look it up, do not guess."""
    print(f"{message.body.decode()}: the broker asks; it was booked")
    return TransactionState.COMMIT


async def main(namesrv: str) -> None:
    arrived: asyncio.Queue[str] = asyncio.Queue()
    consumer = PushConsumer("ledgers", namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)

    @consumer.subscribe("transfers")
    async def on_transfer(message: MessageView) -> None:
        await arrived.put(message.body.decode())

    async with TransactionProducer("bank", namesrv, check=look_up) as producer, consumer:
        for number in (1, 2, 3):
            await producer.send_in_transaction(Message("transfers", f"transfer {number}"), book)
        for _ in range(2):
            print(f"{await asyncio.wait_for(arrived.get(), 90)}: arrived")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    asyncio.run(main(parser.parse_args().namesrv))
