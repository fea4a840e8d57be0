"""What becomes of accounts of 4.x as users and policies of 5.x, and what does not.

White lists have no counterpart: in 5.x every request is signed. What they allowed is listed, so that somebody can give
those clients a key before the accounts go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gimbalmq.access.plain_accounts import Place
from gimbalmq.access.plain_acl import Account, AccountFile, read_file
from gimbalmq.access.plain_rights import acl_of, user_of
from gimbalmq.access.policies import Acl
from gimbalmq.access.users import User, check_name, check_password
from gimbalmq.errors import ConfigError, ResponseError


@dataclass(frozen=True, slots=True)
class Imported:
    """One account, and what it becomes.

    Attributes:
        acl: None for a Super user.
    """

    account: Account
    user: User
    acl: Acl | None


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """All accounts of some files.

    Attributes:
        files: those that were read.
        accounts: in the order of the files.
        lost: what cannot be carried over, in sentences.
    """

    files: tuple[Path, ...]
    accounts: tuple[Imported, ...]
    lost: tuple[str, ...]


def read_accounts(path: Path) -> dict[Path, AccountFile]:
    """Reads one file, or of a folder ``plain_acl.yml`` and the files below ``acl``.

    Raises:
        ConfigError: there is no such file, or one cannot be understood.
    """
    try:
        paths = Place.of(path).paths() if path.is_dir() else [path]
        found = {one: read_file(one.read_bytes(), str(one)) for one in paths}
    except OSError as error:
        raise ConfigError("FILE", str(path), f"cannot be read: {error.strerror or error}") from error
    if not paths:
        raise ConfigError("FILE", str(path), "the folder has neither plain_acl.yml nor files below acl")
    return {one: file or AccountFile() for one, file in found.items()}


def plan_import(files: Mapping[Path, AccountFile], *, bind_sources: bool = False) -> ImportPlan:
    """What importing these files would make.

    Args:
        bind_sources: a user whose account has a white address may come from there only. By itself a white address
            limits nobody; it takes the place of a signature.

    Raises:
        ConfigError: an account cannot be a user.
    """
    found: dict[str, Imported] = {}
    lost: list[str] = []
    for path, file in files.items():
        white = [pattern.text for pattern in file.white if pattern.text]
        if white:
            lost.append(
                f"{path}: requests from {', '.join(white)} needed no key; from now on they must be signed"
            )
        for account in file.accounts:
            if account.access_key in found:
                lost.append(f"{path}: account {account.access_key} came before; this one counts nowhere")
                continue
            user, said = _user(account, bind_sources)
            lost += said
            found[account.access_key] = Imported(account, user, _acl(account))
    return ImportPlan(tuple(files), tuple(found.values()), tuple(lost))


def _user(account: Account, bind_sources: bool) -> tuple[User, list[str]]:
    user = user_of(account)
    try:
        check_name(user.name)
        check_password(user.password)
    except ResponseError as error:
        raise ConfigError("accessKey", account.access_key, f"it cannot be a user: {error.remark}") from None
    if not account.white.text:
        return user, []
    unsigned = (
        f"account {account.access_key}: requests from {account.white.text} needed no signature; from now on they must "
        "be signed"
    )
    if not bind_sources or account.white.everybody:
        return user, [unsigned]
    networks = account.white.networks()
    if networks is None:
        return user, [f"{unsigned}, and the user is not bound to these addresses, which are too many ranges"]
    return replace(user, source_ips=networks), [f"{unsigned}, and the user may come from nowhere else"]


def _acl(account: Account) -> Acl | None:
    acl = acl_of(account)
    if acl is None:
        return None
    try:
        return Acl(acl.user).merged(acl.policies)
    except ResponseError as error:
        raise ConfigError("accessKey", account.access_key, error.remark) from None
