"""The kinds of worlds, and what each of them promises beyond "nothing is lost and all comes to rest"."""

from __future__ import annotations

from dataclasses import replace

from tests.sim.schedule import CONNECTIONS, KINDS, PLANNED, SERVER_KINDS, Kind
from tests.sim.world import Report, Settings, some

NO_BROKER_FAULTS = tuple(kind for kind in KINDS if not kind.startswith("broker"))
HARMLESS: tuple[Kind, ...] = (*PLANNED, "resize", "clock")
"""Nothing of this repeats a message where queues are handed over by lease."""
PAUSES: tuple[Kind, ...] = ("stop", "sleep", "hang", "partition", "clock", *PLANNED)
OF_MEMBERS: tuple[Kind, ...] = ("crash", "vanish", *CONNECTIONS, *PAUSES, "resize")
MOVES: tuple[Kind, ...] = ("broker move", "broker restart", "broker kill", "partition", "stop", *HARMLESS)
HANDOVER_SECONDS = 60.0
"""How long a queue that is to be handed over waits for a handler: ``handover_wait``."""
LOCK_SECONDS = 30.0
"""How long an ordered consumer without leases surely has a queue after it last renewed its lock: ``lock_live``."""
BESIDE: tuple[Kind, ...] = ("broker restart", "name server", "reset", "partition", "crash", "join", "late")
"""What befalls a world of servers beside their own troubles."""
KILLED: tuple[Kind, ...] = (
    "broker kill",
    *(kind for kind in SERVER_KINDS if kind != "power loss"),
    *BESIDE,
)
DARK: tuple[Kind, ...] = ("power loss", *SERVER_KINDS, *BESIDE)
WHOLE: tuple[Kind, ...] = tuple(kind for kind in KILLED if kind not in ("broker kill", "broker clock"))

GROUPS: dict[str, Settings] = {
    "as Java": Settings(),
    "as Java, in order": Settings(ordered=True),
    "handlers that fail": Settings(failing=0.03),
    "leases": Settings(handover="lease", strategy="STICKY"),
    "leases, in order": Settings(handover="lease", ordered=True),
    "leases, planned": Settings(handover="lease", kinds=HARMLESS),
    "leases, planned, in order": Settings(handover="lease", kinds=HARMLESS, ordered=True),
    "leases, hung handlers": Settings(
        handover="lease", kinds=("hang", *HARMLESS), work_limit=HANDOVER_SECONDS
    ),
    "leases, bad lines": Settings(handover="lease", kinds=(*CONNECTIONS, *PLANNED)),
    "leases, pauses": Settings(handover="lease", kinds=PAUSES),
    "leases, handlers that fail": Settings(handover="lease", failing=0.1, kinds=MOVES),
    "leases, brokers stay": Settings(handover="lease", kinds=NO_BROKER_FAULTS),
    "leases, brokers move": Settings(handover="lease", kinds=MOVES),
    "leases, Apache's brokers": Settings(handover="lease", kinds=OF_MEMBERS, as_apache=True),
    "in order, brokers stay": Settings(ordered=True, kinds=NO_BROKER_FAULTS, work_limit=LOCK_SECONDS),
}
"""What befalls members and their queues."""

_ALL = Settings(
    brokers=1,
    members=2,
    producers=1,
    topics=("T",),
    queues=2,
    faults=7,
    span=100.0,
    delays=True,
    transactions=True,
    recreated=True,
)
SERVERS: dict[str, Settings] = {
    "servers killed": replace(_ALL, kinds=KILLED),
    "servers in the dark": replace(_ALL, kinds=DARK, sync_flush=True),
    "servers in trouble": replace(_ALL, kinds=WHOLE, brokers=2),
    "topics wiped": replace(
        _ALL,
        kinds=(
            "delete topic",
            "resize",
            "name server",
            "broker restart",
            "broker kill",
            "partition",
            "reset",
        ),
        brokers=2,
        nameserver_options=(("deleteTopicWithBrokerRegistration", True),),
    ),
}
"""What befalls brokers, their disks, clocks and topics, with every sort of message on its way."""

WORLDS: dict[str, Settings] = GROUPS | SERVERS


def is_exclusive(settings: Settings) -> bool:
    """Whether one queue never has two handlers at work.

    Locks live in a broker's memory. Leases bridge its restart, Java's way of locking queues does not.
    """
    return settings.handover == "lease" or (settings.ordered and set(settings.kinds) <= set(NO_BROKER_FAULTS))


EXCLUSIVE = [name for name, settings in WORLDS.items() if is_exclusive(settings)]


def small(settings: Settings) -> Settings:
    """The same kind of world, so small that ten thousand of them take less than an hour."""
    return replace(
        settings,
        span=50.0,
        faults=4,
        members=2,
        producers=1,
        topics=("T",),
        queues=2,
        pause=(0.2, 0.8),
        special_pause=(0.4, 2.0),
        longest_timer=20.0,
    )


def broken(report: Report) -> list[str]:
    """What a run has broken of its world's promises."""
    problems = list(report.problems)
    account = report.account
    settings = report.settings
    desk = report.desk
    leases = settings.handover == "lease"
    if is_exclusive(settings):
        if desk.overlaps:
            problems.append(f"{len(desk.overlaps)} times two handlers were at work: {desk.overlaps[0]}")
        if desk.claims and leases:
            problems.append(f"{len(desk.claims)} times a queue had two owners: {desk.claims[0]}")
    if leases and set(settings.kinds) <= set(HARMLESS) and account.repeated:
        first = account.repeated[0]
        problems.append(
            f"{len(account.repeated)} messages repeated by planned changes: {first.body.decode()} at "
            f"{first.at:.3f} s by {first.member}"
        )
    if "power loss" not in settings.kinds:
        twice = account.in_several_places(account.due)
        if twice:
            problems.append(f"{len(twice)} delayed messages were delivered twice: {some(twice)}")
        twice = account.in_several_places(account.committed)
        if twice:
            problems.append(f"{len(twice)} transactions were committed twice: {some(twice)}")
    return problems
