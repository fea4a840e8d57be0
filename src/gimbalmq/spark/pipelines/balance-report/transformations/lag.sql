-- Messages behind the newest, over time: the last look at each queue in each bucket, summed for the topic.
CREATE MATERIALIZED VIEW lag AS
WITH looks AS (
  SELECT
    `group`, topic, broker, queue_id,
    window(at, '${gimbalmq.bucket} seconds').start AS at,
    max_by(lag, at_ms) AS lag
  FROM records
  WHERE record = 'Position'
  GROUP BY ALL
)
SELECT `group`, topic, at, sum(lag) AS lag, max(lag) AS most_of_a_queue, count(*) AS queues
FROM looks
GROUP BY `group`, topic, at;
