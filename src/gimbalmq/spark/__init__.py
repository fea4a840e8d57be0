"""Topics in Spark: source, sink and the commit-log source (extra ``gimbalmq[spark]``).

Spark finds ``format("rocketmq")`` and ``format("rocketmq-store")`` by the top-level modules
``pyspark_gimbalmq`` and ``pyspark_gimbalmq_store``; nothing has to be registered.
"""
