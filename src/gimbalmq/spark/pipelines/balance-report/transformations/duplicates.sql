-- Messages that came more than once: by a move to another member, or to one that had finished them before.
CREATE MATERIALIZED VIEW duplicates AS
SELECT `group`, topic, to_member AS member, 'moved' AS kind, sum(redelivered) AS messages
FROM moves
WHERE redelivered > 0
GROUP BY ALL
UNION ALL
SELECT `group`, topic, member, 'seen again' AS kind, sum(count) AS messages
FROM records
WHERE record = 'DuplicatesSeen'
GROUP BY ALL;
