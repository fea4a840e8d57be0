"""Who is logged in: held by the dashboard, never by the browser, which has a random word that names its session."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gimbalmq._clock import Clock

A = TypeVar("A")

MOST_SESSIONS = 500
MOST_OF_ONE_USER = 20
"""Or one user with a script could push all the others out."""


@dataclass(slots=True, eq=False)
class Session(Generic[A]):
    """One login.

    Attributes:
        account: what it acts with.
        token: what the browser's cookie carries.
        began, used: when it was made, and when its user last did something; seconds of the clock.
        over: it has ended; nothing may be done with it any more.
    """

    user: str
    account: A
    token: str = field(repr=False)
    began: float
    used: float
    over: bool = False


class Sessions(Generic[A]):
    """All logins; bounded, and each ends by itself.

    Args:
        idle: seconds after which a session ends whose user does nothing.
        longest: seconds after which every session ends.
        ended: called with each session that ends, however it does.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        idle: float,
        longest: float,
        ended: Callable[[Session[A]], None] = lambda session: None,
    ) -> None:
        self._clock = clock
        self._idle = idle
        self._longest = longest
        self._ended = ended
        self._by_token: dict[str, Session[A]] = {}

    def __len__(self) -> int:
        return len(self._by_token)

    def __iter__(self) -> Iterator[Session[A]]:
        return iter(list(self._by_token.values()))

    def begin(self, user: str, account: A) -> Session[A]:
        """A new session; if there are too many, the one that was not used for longest ends."""
        own = [session for session in self if session.user == user]
        if len(own) >= MOST_OF_ONE_USER:
            self.end(min(own, key=lambda session: session.used))
        elif len(self) >= MOST_SESSIONS:
            self.end(min(self, key=lambda session: session.used))
        now = self._clock.monotonic()
        session = Session(user, account, secrets.token_urlsafe(32), now, now)
        self._by_token[session.token] = session
        return session

    def find(self, token: object) -> Session[A] | None:
        """The session that a cookie names, if it has not ended."""
        session = self._by_token.get(token) if isinstance(token, str) else None
        return session if session is not None and self.lives(session) else None

    def lives(self, session: Session[A]) -> bool:
        """Whether it may still be used; ends it if its time is over."""
        if session.over:
            return False
        now = self._clock.monotonic()
        if now - session.used < self._idle and now - session.began < self._longest:
            return True
        self.end(session)
        return False

    def use(self, session: Session[A]) -> None:
        """Its user did something. Pages that bring themselves up to date do not count."""
        session.used = self._clock.monotonic()

    def end(self, session: Session[A]) -> None:
        if self._by_token.pop(session.token, None) is not None:
            session.over = True
            self._ended(session)

    def sweep(self) -> None:
        """Ends what nobody asks for any more; to be called now and then."""
        for session in self:
            self.lives(session)
