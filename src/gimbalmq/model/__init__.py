"""Messages, records, queues, routes and names: what the wire, the disk and the clients have in common."""
