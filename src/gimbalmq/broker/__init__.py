"""The broker: keeps messages, hands them out, and knows the members of groups."""
