"""Rows a second from bytes of records to Arrow batches, on one core, against a plain loop over structs.

Pieces are as long as the source joins pulls to. Times are CPU time of this process (user and system),
taken in turns; the median of the rounds counts and the best one is shown beside it.

python benchmarks/spark_decode.py [--rounds N] [--piece BYTES]
"""

from __future__ import annotations

import argparse
import struct
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import pyarrow as pa

from gimbalmq.model.compression import compress
from gimbalmq.model.record import encode_properties, encode_record
from gimbalmq.spark.columns import DEFAULT, arrow_schema
from gimbalmq.spark.decode import decode

BROKER = "broker-a"
TWO = ("offset", "body")
WITH_MAP = (*DEFAULT, "properties")
HEAD = struct.Struct(">iIIiiqqiq8sq8siqi")


def loop(data: bytes, names: Sequence[str]) -> pa.RecordBatch:
    """What one writes first: a struct, slices, a dict of properties; ordinary records only."""
    rows = []
    unpack, size = HEAD.unpack_from, HEAD.size
    with_map = "properties" in names
    position, end = 0, len(data)
    while position < end:
        total, _, _, queue, _, offset, place, _, born, _, stored, host, times, _, length = unpack(
            data, position
        )
        at = position + size
        body = data[at : at + length]
        at += length + 1
        topic_end = at + data[at - 1]
        topic = data[at:topic_end].decode()
        position += total
        properties = {}
        for item in data[topic_end + 2 : position].decode().split("\2"):
            name, _, value = item.partition("\1")
            if name and value:
                properties[name] = value
        get = properties.get
        unique = get("UNIQ_KEY") or (host + place.to_bytes(8, "big")).hex().upper()
        row: list[Any] = [topic, BROKER, queue, offset, get("KEYS"), get("TAGS"), body]
        row += [born * 1000, stored * 1000, unique, times]
        if with_map:
            row.append(list(properties.items()))
        rows.append(row)
    schema = arrow_schema(names)
    columns = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def loop_two(data: bytes, names: Sequence[str]) -> pa.RecordBatch:
    """The loop for offset and body alone."""
    offsets, bodies = [], []
    unpack, size = struct.Struct(">i16xq56xi").unpack_from, HEAD.size
    position, end = 0, len(data)
    while position < end:
        total, offset, length = unpack(data, position)
        offsets.append(offset)
        bodies.append(data[position + size : position + size + length])
        position += total
    return pa.RecordBatch.from_arrays(
        [pa.array(offsets, pa.int64()), pa.array(bodies, pa.binary())], schema=arrow_schema(names)
    )


def piece(body_size: int, length: int, kind: str) -> bytes:
    """Records of one queue up to a length: as one producer sends them, or of other kinds."""
    records = []
    total = number = 0
    while total < length:
        properties = {
            "KEYS": f"order-{number}",
            "UNIQ_KEY": f"7F000001{number:024X}",
            "WAIT": "true",
            "TAGS": "TagA",
        }
        body = (b"%08d" % number).ljust(body_size, b"x")
        flag = 0
        if kind == "unlike":
            properties["city"] = "Berlin" if number % 3 else "Rome"
            if number % 2:
                properties = dict(reversed(properties.items()))
        if kind == "compressed" or (kind == "1 % unusual" and number % 100 == 0):
            body, flag = compress(body), 1
        if kind == "1 % unusual" and number % 100 == 50:
            properties["note"] = "holds\1one"
        made = encode_record(
            topic="BenchmarkTopic",
            body=body,
            properties=encode_properties(properties),
            queue_id=3,
            queue_offset=number,
            commitlog_offset=1_000_000 + 8 * total,
            sys_flag=flag,
            born_timestamp=1_700_000_000_000 + number,
            store_timestamp=1_700_000_000_001 + number,
        )
        records.append(made)
        total += len(made)
        number += 1
    return b"".join(records)


Subject = tuple[str, Callable[[], pa.RecordBatch]]


def measure(subjects: Sequence[Subject], rounds: int) -> dict[str, list[float]]:
    """Rows a second of each round; the subjects take turns."""
    rates: dict[str, list[float]] = {name: [] for name, _ in subjects}
    for _ in range(rounds):
        for name, run in subjects:
            run()  # its own memory and caches
            started = time.process_time()
            count = sum(run().num_rows for _ in range(3))
            rates[name].append(count / (time.process_time() - started))
    return rates


def by_vectors(data: bytes, names: Sequence[str]) -> Callable[[], pa.RecordBatch]:
    return lambda: decode(data, names, broker=BROKER)


def report(body_size: int, length: int, rounds: int) -> None:
    data = piece(body_size, length, "alike")
    assert loop(data, WITH_MAP) == decode(data, WITH_MAP, broker=BROKER)
    assert loop_two(data, TWO) == decode(data, TWO, broker=BROKER)
    subjects: list[Subject] = [
        ("loop, default columns", lambda: loop(data, DEFAULT)),
        ("loop, two columns", lambda: loop_two(data, TWO)),
        ("loop, with properties", lambda: loop(data, WITH_MAP)),
        ("default columns", by_vectors(data, DEFAULT)),
        ("two columns", by_vectors(data, TWO)),
        ("with properties", by_vectors(data, WITH_MAP)),
    ]
    for kind in ("unlike", "1 % unusual", "compressed"):
        other = piece(body_size, length, kind)
        subjects.append((f"default columns, {kind}", by_vectors(other, DEFAULT)))
        subjects.append((f"with properties, {kind}", by_vectors(other, WITH_MAP)))
    rates = measure(subjects, rounds)
    print(f"\n{body_size} B bodies, {decode(data, TWO, broker=BROKER).num_rows} rows in {len(data)} bytes")
    print(f"{'':32}  M rows/s     best   times the loop")
    for name, found in rates.items():
        against = f"loop, {name}"
        ratio = f"{median(found) / median(rates[against]):12.1f}" if against in rates else ""
        print(f"{name:32}  {median(found) / 1e6:8.2f} {max(found) / 1e6:8.2f}  {ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--piece", type=int, default=2 * 1024 * 1024, help="bytes in each batch")
    options = parser.parse_args()
    for body_size in (100, 1024):
        report(body_size, options.piece, options.rounds)


if __name__ == "__main__":
    main()
