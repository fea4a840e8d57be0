"""Who may do what: users and their policies, the check of every request, and the record of refusals."""
