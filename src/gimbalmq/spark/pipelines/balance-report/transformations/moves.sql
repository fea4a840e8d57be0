-- Every queue that went from one member to another, how long nobody read it, and what was delivered again.
CREATE MATERIALIZED VIEW moves AS
SELECT
  since AS at, `group`, topic, broker, queue_id,
  previous_member AS from_member,
  member AS to_member,
  reason,
  paused AS paused_seconds,
  greatest(0, previous_offset - first_offset) AS redelivered
FROM holdings
WHERE previous_member <> member;
