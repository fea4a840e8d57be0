<<<<<<< HEAD
"""Who may do what: users, policies, signatures and the one gate that every request of a server passes."""
=======
"""Who may do what: users and their policies, the check of every request, and the record of refusals."""
>>>>>>> users
