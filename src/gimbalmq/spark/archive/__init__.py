"""``format("rocketmq-archive")``: rows as Parquet files in folders by topic and day, with a log of its own.

Spark's own streaming tables of Parquet files know no folders, and a stream over them takes files for what is
new, so that files cannot be joined without being read again. Here a log says which files hold the rows of
which batch, and a stream's progress is the number of a batch: files may be joined at any time.

| module | knows |
|---|---|
| ``log`` | which files there are, what each holds, and how that changes in one step |
| ``writer`` | rows into files by partition; each batch of a query once |
| ``reader`` | batches as slices of files; the order of each queue |
| ``source`` | what Spark is told: options, columns, readers and writers |
| ``compact`` | small files into large ones |
"""
