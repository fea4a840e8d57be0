"""Users: which values are taken, what a change keeps, and that nothing shows a password."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.access.users import User, UserStatus, UserType, check_certificate
from gimbalmq.errors import InvalidParameterError, NoPermissionError, ResponseError
from gimbalmq.protocol.access_bodies import UserBody, user_of_request
from gimbalmq.transport.tls import PeerCertificate

FINGERPRINT = "0123456789abcdef" * 4


def test_a_user_is_normal_and_enabled_unless_told_otherwise() -> None:
    assert User.of(UserBody(username="u", password="p")) == User("u", "p", UserType.NORMAL, UserStatus.ENABLE)
    body = UserBody(username="other", password="p", user_type="SUPER", user_status="Disable")
    assert User.of(body, "u") == User("u", "p", UserType.SUPER, UserStatus.DISABLE)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (UserBody(password="p"), "username can not be blank"),
        (UserBody(username="  ", password="p"), "username can not be blank"),
        (UserBody(username="u"), "password can not be blank"),
        (UserBody(username="u", password=" "), "password can not be blank"),
        (UserBody(username="a b", password="p"), "has a blank, a comma"),
        (UserBody(username="a,b", password="p"), "has a blank, a comma"),
        (UserBody(username="a\x07b", password="p"), "unprintable letter"),
        (UserBody(username="a" * 256, password="p"), "256 letters and may have 255"),
        (UserBody(username="u", password="p" * 1025), "1025 letters and may have 1024"),
        (UserBody(username="u", password="\ud800"), "UTF-8"),
        (
            UserBody(username="u", password="p", user_type="Admin"),
            "type 'Admin' is unknown: use Super, Normal",
        ),
        (
            UserBody(username="u", password="p", user_status="off"),
            "status 'off' is unknown: use enable, disable",
        ),
        (UserBody(username="u", password="p", source_ips=["here"]), "The source ip is invalid."),
        (UserBody(username="u", password="p", source_ips=["::1"] * 101), "101 source addresses"),
        (UserBody(username="u", password="p", certificate="AB:CD"), "names none"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(body: UserBody, said: str) -> None:
    with pytest.raises((InvalidParameterError, NoPermissionError)) as caught:
        User.of(body)
    assert said in caught.value.remark
    assert body.password is None or len(body.password) == 1 or body.password not in caught.value.remark


def test_a_change_keeps_what_it_does_not_name() -> None:
    user = User("u", "p", UserType.SUPER, UserStatus.ENABLE, ("10.0.0.1",), "client")
    assert user.changed(UserBody()) == user
    assert user.changed(UserBody(username="x", password="", user_type=" ", user_status="")) == user
    assert user.changed(UserBody(password="q")).password == "q"
    assert user.changed(UserBody(user_type="normal")).type == UserType.NORMAL
    assert user.changed(UserBody(user_status="disable")).is_enabled is False
    assert user.changed(UserBody(source_ips=[], certificate="")) == User("u", "p", UserType.SUPER)


def test_a_user_survives_the_wire() -> None:
    user = User("u", "p", UserType.SUPER, UserStatus.DISABLE, ("10.0.0.1", "::/0"), FINGERPRINT)
    assert User.of(user_of_request(user.body(with_password=True).dump())) == user


def test_nothing_shows_a_password() -> None:
    user = User("u", "secret-1", UserType.SUPER)
    shown = f"{user!r} {user} {user.body(with_password=True)!r} {user.body(with_password=False).dump()!r}"
    assert "secret-1" not in shown
    assert b"password" not in user.body(with_password=False).dump()


def test_java_tools_find_their_fields_and_no_others() -> None:
    assert User("u", "p").body(with_password=True).dump() == (
        b'{"password":"p","userStatus":"enable","userType":"Normal","username":"u"}'
    )


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", None),
        (" ", None),
        ("orders", "orders"),
        ("CN=orders", "orders"),
        (FINGERPRINT.upper(), FINGERPRINT),
        (":".join(FINGERPRINT[n : n + 2].upper() for n in range(0, 64, 2)), FINGERPRINT),
        (f"sha256:{FINGERPRINT}", FINGERPRINT),
    ],
)
def test_a_certificate_is_kept_in_one_spelling(text: str, kept: str | None) -> None:
    assert check_certificate(text) == kept


@pytest.mark.parametrize("text", ["CN=", "a\nb", FINGERPRINT[:-1], FINGERPRINT + "0", "AB:CD", "n" * 256])
def test_what_names_no_certificate_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameterError, match="names none"):
        check_certificate(text)


def test_a_user_is_bound_to_its_certificate() -> None:
    free, named, printed = (
        User("u", "p"),
        User("u", "p", certificate="c"),
        User("u", "p", certificate=FINGERPRINT),
    )
    assert free.may_present(None)
    assert named.may_present(PeerCertificate("c", FINGERPRINT))
    assert not named.may_present(None)
    assert not named.may_present(PeerCertificate("d", FINGERPRINT))
    assert printed.may_present(PeerCertificate("c", FINGERPRINT))
    assert not printed.may_present(None)
    # A certificate whose owner chose the other's fingerprint for a name.
    assert not printed.may_present(PeerCertificate(FINGERPRINT, "f" * 64))


def test_a_user_is_bound_to_its_addresses() -> None:
    assert User("u", "p").may_come_from("10.0.0.1")
    bound = User("u", "p", source_ips=("10.0.0.0/8",))
    assert bound.may_come_from("10.9.9.9")
    assert not bound.may_come_from("11.0.0.1")
    assert not bound.may_come_from("?")


_texts = (
    st.none() | st.text(max_size=8) | st.sampled_from(["Super", "normal", "enable", "DISABLE", "::1", "CN=x"])
)


@given(_texts, _texts, _texts, _texts, st.none() | st.lists(st.text(max_size=8)), _texts)
def test_any_user_is_taken_whole_or_refused(
    name: str | None,
    password: str | None,
    kind: str | None,
    status: str | None,
    sources: list[str] | None,
    certificate: str | None,
) -> None:
    body = UserBody(
        username=name,
        password=password,
        user_type=kind,
        user_status=status,
        source_ips=sources,
        certificate=certificate,
    )
    try:
        user = User.of(body)
    except ResponseError:
        return
    assert User.of(user.body(with_password=True)) == user
    assert user.is_super == (kind is not None and kind.strip().lower() == "super")
    assert user.is_enabled == (status is None or status.strip().lower() in ("", "enable"))
    assert bool(user.source_ips) == bool(sources)
    assert (user.certificate is None) == (not (certificate or "").strip())
