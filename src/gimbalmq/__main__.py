"""``python -m gimbalmq`` is the ``gimbalmq`` command."""

from __future__ import annotations

import sys

from gimbalmq.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
