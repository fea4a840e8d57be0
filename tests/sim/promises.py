"""The kinds of worlds, and what each of them promises beyond "nothing is lost and all comes to rest"."""

from __future__ import annotations

from tests.sim.schedule import CONNECTIONS, KINDS, PLANNED
from tests.sim.world import Report, Settings

NO_BROKER_FAULTS = tuple(kind for kind in KINDS if not kind.startswith("broker"))

WORLDS: dict[str, Settings] = {
    "as Java": Settings(),
    "as Java, in order": Settings(ordered=True),
    "handlers that fail": Settings(failing=0.03),
    "leases": Settings(handover="lease", strategy="STICKY"),
    "leases, in order": Settings(handover="lease", ordered=True),
    "leases, planned": Settings(handover="lease", kinds=(*PLANNED, "resize")),
    "leases, bad lines": Settings(handover="lease", kinds=(*CONNECTIONS, *PLANNED)),
    "leases, brokers stay": Settings(handover="lease", kinds=NO_BROKER_FAULTS),
}


def broken(report: Report) -> list[str]:
    """What a run has broken of its world's promises."""
    problems = list(report.problems)
    account = report.account
    settings = report.settings
    if settings.handover == "lease":
        # Locks live in a broker's memory, as with Apache's: one that was restarted has forgotten them.
        if set(settings.kinds) <= set(NO_BROKER_FAULTS) and account.overlaps:
            problems.append(f"{len(account.overlaps)} messages begun while another held the queue")
        if set(settings.kinds) <= {*PLANNED, "resize"} and account.repeated:
            problems.append(f"{len(account.repeated)} messages repeated by planned changes")
    return problems
