"""Producers and consumers, on one ``ClientInstance`` per client id."""
