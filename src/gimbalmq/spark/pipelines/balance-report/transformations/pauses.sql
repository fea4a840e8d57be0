-- How long moved queues stood still, for each topic.
CREATE MATERIALIZED VIEW pauses AS
SELECT
  `group`, topic,
  count(*) AS moved,
  avg(paused_seconds) AS mean_seconds,
  percentile(paused_seconds, 0.95) AS p95_seconds,
  max(paused_seconds) AS longest_seconds
FROM moves
GROUP BY `group`, topic;
