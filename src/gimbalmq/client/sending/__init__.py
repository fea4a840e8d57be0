"""Sending, in parts that the producer, the retry topic and the Spark sink share.

``prepare`` makes the form that travels, ``targets`` knows a topic's queues and picks one, ``frames`` makes the
bytes, ``attempts`` sends once, ``rules`` says what happens after a failure, and ``loop`` tries until a broker has
stored the message or the rules say that it is enough. ``lines`` keeps the order of messages that are bound to a
queue and have to wait. ``retry_topic`` sends failed messages of a consumer.
"""
