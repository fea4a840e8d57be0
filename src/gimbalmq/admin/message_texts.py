"""A message as people read it (whole, or on one line) and as JSON."""

from __future__ import annotations

import base64
from typing import Any

from gimbalmq.admin.texts import moment, pairs, printable
from gimbalmq.errors import RocketMQError
from gimbalmq.model.message import MessageView


def message_data(view: MessageView) -> dict[str, Any]:
    """A message as JSON: the body as text if it is UTF-8, else as base64."""
    data: dict[str, Any] = {
        "topic": view.topic,
        "broker": view.broker_name,
        "queueId": view.queue_id,
        "offset": view.queue_offset,
        "msgId": view.msg_id,
        "offsetMsgId": view.offset_msg_id,
        "tags": view.tags,
        "keys": list(view.keys),
        "bornTimestamp": view.born_timestamp,
        "storeTimestamp": view.store_timestamp,
        "bornHost": ":".join(map(str, view.born_host)),
        "storeHost": ":".join(map(str, view.store_host)),
        "reconsumeTimes": view.reconsume_times,
        "flag": view.flag,
        "properties": view.all_properties,
    }
    body, name = body_text(view)
    data[name] = body
    return data


def body_text(view: MessageView) -> tuple[str, str]:
    try:
        return view.body.decode(), "body"
    except UnicodeDecodeError:
        return base64.b64encode(view.body).decode(), "bodyBase64"
    except RocketMQError as error:
        return f"(cannot be read: {error})", "bodyError"


def message_text(view: MessageView) -> str:
    """Everything about one message, for a person."""
    body, name = body_text(view)
    return pairs(
        (
            ("message id", view.msg_id),
            ("offset id", view.offset_msg_id),
            ("topic", view.topic),
            ("queue", f"{view.broker_name or '-'}/{view.queue_id} at {view.queue_offset}"),
            ("tags", view.tags),
            ("keys", " ".join(view.keys) or None),
            ("born", f"{moment(view.born_timestamp)} at {view.born_host[0]}:{view.born_host[1]}"),
            ("stored", f"{moment(view.store_timestamp)} at {view.store_host[0]}:{view.store_host[1]}"),
            ("tries", view.reconsume_times),
            ("properties", " ".join(f"{key}={value}" for key, value in sorted(view.all_properties.items()))),
            (name, body),
        )
    )


def message_line(view: MessageView) -> str:
    """One message on one line."""
    body = printable(body_text(view)[0].replace("\n", "\\n"))
    words = [moment(view.store_timestamp), f"{view.broker_name or '-'}/{view.queue_id}@{view.queue_offset}"]
    if view.tags:
        words.append(f"[{printable(view.tags)}]")
    if view.keys:
        words.append(printable(",".join(view.keys)))
    return f"{'  '.join(words)}  {body}"
