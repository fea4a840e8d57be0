"""Counterparts for the interop tests: Apache RocketMQ (Java) and our own servers, as child processes."""
