"""Settings of the whole suite."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# Machines here are small and busy: how long one example takes says nothing about the code.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every program that they start:
# those that are tested for what they do at Ctrl-C could not be ended by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
