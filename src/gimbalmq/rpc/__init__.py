"""One typed coroutine for each request, for whoever has a connection."""
