"""One administration API for the command line, the dashboard and programs; Apache's clusters and ours.

``Admin`` is the async form, ``gimbalmq.sync.Admin`` the blocking one.
"""
