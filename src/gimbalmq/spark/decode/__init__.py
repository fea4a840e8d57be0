"""Bytes of records to Arrow batches.

``rows`` has the way of a buffer from end to end; ``starts`` finds the records, ``layout`` their parts, ``properties``
and ``pieces`` make columns of them. ``slowly`` does the same record by record and says what is right.
"""

from gimbalmq.spark.decode.rows import decode
from gimbalmq.spark.decode.slowly import OnError, find_record_start
from gimbalmq.spark.decode.starts import RecordStarts, record_starts

__all__ = ["OnError", "RecordStarts", "decode", "find_record_start", "record_starts"]
