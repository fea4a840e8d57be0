"""Connections: sockets, TLS, limits, and work in the background."""
