-- Who held which queue from when to when, and how far it got.
CREATE MATERIALIZED VIEW holdings AS
WITH numbered AS (
  SELECT
    *,
    count_if(record = 'QueueTaken') OVER (
      PARTITION BY `group`, topic, broker, queue_id, member
      ORDER BY at_ms, if(record = 'QueueTaken', 0, 1)
    ) AS period
  FROM records
  WHERE record IN ('QueueTaken', 'QueueStarted', 'QueueDropped', 'QueueReleased', 'Position')
),
periods AS (
  SELECT
    `group`, topic, broker, queue_id, member, period,
    min(at) AS since,
    coalesce(min(at) FILTER (WHERE record = 'QueueDropped'), max(at)) AS until,
    min(offset) FILTER (WHERE record = 'QueueTaken') AS first_offset,
    max(offset) AS last_offset,
    max(paused) AS paused,
    max(reason) FILTER (WHERE record = 'QueueTaken') AS reason
  FROM numbered
  WHERE period > 0
  GROUP BY `group`, topic, broker, queue_id, member, period
)
SELECT
  `group`, topic, broker, queue_id, member, since, until, paused, reason, first_offset, last_offset,
  lag(member) OVER queue AS previous_member,
  lag(last_offset) OVER queue AS previous_offset,
  -- Where the next member began is where this one had committed, be it after the last line it wrote.
  greatest(last_offset, lead(first_offset) OVER queue) - first_offset AS messages
FROM periods
WINDOW queue AS (PARTITION BY `group`, topic, broker, queue_id ORDER BY since);
