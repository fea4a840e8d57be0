-- Messages and bytes of each topic and day, and how many had the keys they should have.
CREATE MATERIALIZED VIEW daily_counts AS
SELECT
  topic,
  date,
  count(*) AS messages,
  sum(octet_length(body)) AS bytes,
  count_if(key IS NULL) AS without_key,
  min(storeTimestamp) AS first,
  max(storeTimestamp) AS last
FROM messages
GROUP BY topic, date;
