"""Who may do what: users, policies, signatures and the one gate that every request of a server passes."""
