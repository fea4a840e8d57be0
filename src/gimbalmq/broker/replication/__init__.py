"""Copies of a broker's log and tables on other machines, and who of them is the master."""
