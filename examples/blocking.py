"""A program without asyncio: the same names from gimbalmq.sync.

python examples/blocking.py
"""

from __future__ import annotations

import argparse
import queue

from gimbalmq import ConsumeFromWhere, Message, MessageView
from gimbalmq.sync import Producer, PushConsumer


def main(namesrv: str) -> None:
    received: queue.Queue[str] = queue.Queue()
    consumer = PushConsumer("greeters", namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)

    @consumer.subscribe("greetings")
    def on_greeting(message: MessageView) -> None:  # runs in a thread of the consumer's pool
        received.put(message.body.decode())

    with Producer("callers", namesrv) as producer, consumer:
        for name in ("Ada", "Grace", "Edsger"):
            producer.send(Message("greetings", f"hello {name}"))
        for _ in range(3):
            print(received.get(timeout=30))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    main(parser.parse_args().namesrv)
