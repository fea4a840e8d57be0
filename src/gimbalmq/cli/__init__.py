"""The ``gimbalmq`` command."""
