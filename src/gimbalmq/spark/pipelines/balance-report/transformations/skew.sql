-- What each member consumed of each topic, beside an equal share (1 is even).
CREATE MATERIALIZED VIEW skew AS
WITH shares AS (
  SELECT
    `group`, topic, member,
    count(DISTINCT broker, queue_id) AS queues,
    sum(messages) AS messages,
    sum(timestampdiff(MILLISECOND, since, until)) / 1000 AS queue_seconds
  FROM holdings
  GROUP BY `group`, topic, member
)
SELECT *, messages / nullif(avg(messages) OVER (PARTITION BY `group`, topic), 0) AS of_fair_share
FROM shares;
