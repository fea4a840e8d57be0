"""What the gate asks: who is known, and what they may do. The table of users is one, the accounts of 4.x another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gimbalmq.access.policies import Acl
from gimbalmq.access.users import User


class Directory(Protocol):
    """Users and their policies.

    Attributes:
        revision: grows with each change, so that whoever keeps decisions knows when they are void.
    """

    @property
    def revision(self) -> int: ...

    def user(self, name: str) -> User | None: ...

    def acl(self, name: str) -> Acl | None:
        """The policies of a user; None if it has none."""
        ...

    def trusts(self, source: str, user: str | None) -> bool:
        """Whether requests from this address are served without a check (white lists of 4.x).

        Args:
            source: the peer's address, without the port.
            user: whom the request claims to come from; None if it names nobody. Nothing proves it.
        """
        ...


class OneUser:
    """A single user, who never changes: what the servers of one process know each other by."""

    revision = 0

    def __init__(self, user: User) -> None:
        self._user = user

    def user(self, name: str) -> User | None:
        return self._user if name == self._user.name else None

    def acl(self, name: str) -> Acl | None:
        return None

    def trusts(self, source: str, user: str | None) -> bool:
        return False


class Directories:
    """Several as one; a user is known by the first that knows the name, and has that one's policies only."""

    def __init__(self, parts: Sequence[Directory]) -> None:
        self._parts = tuple(parts)

    @property
    def revision(self) -> int:
        # Each part's number only grows, so the sum changes with every change of a part.
        return sum(part.revision for part in self._parts)

    def user(self, name: str) -> User | None:
        part = self._home(name)
        return None if part is None else part.user(name)

    def acl(self, name: str) -> Acl | None:
        part = self._home(name)
        return None if part is None else part.acl(name)

    def trusts(self, source: str, user: str | None) -> bool:
        if any(part.trusts(source, None) for part in self._parts):
            return True
        home = None if user is None else self._home(user)
        return home is not None and home.trusts(source, user)

    def _home(self, name: str) -> Directory | None:
        return next((part for part in self._parts if part.user(name) is not None), None)
