"""Files of accounts: Apache's sample as it is, what is refused and how, and that no error tells a secret."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.access.plain_acl import Account, AccountFile, Perm, read_file
from gimbalmq.access.plain_addresses import read_pattern
from gimbalmq.errors import ConfigError

SAMPLE = b"""
# As in the sample of Apache's distribution.
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB

  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
"""

SECRET = "the-hidden-words"


def read(text: str) -> AccountFile:
    found = read_file(text.encode(), "plain_acl.yml")
    assert found is not None
    return found


def account(*lines: str) -> Account:
    """An account with these lines besides its key and secret."""
    head = ("accounts:", "- accessKey: somebody", f"  secretKey: {SECRET}")
    [found] = read("\n".join((*head, *(f"  {line}" for line in lines)))).accounts
    return found


def test_apaches_sample_is_read_as_it_is() -> None:
    found = read(SAMPLE.decode())
    assert [pattern.text for pattern in found.white] == ["10.10.103.*", "192.168.0.*"]
    first, second = found.accounts
    assert (first.access_key, first.secret_key, first.admin) == ("RocketMQ", "12345678", False)
    assert first.white.text == "" and not first.white.matches("127.0.0.1")
    assert (first.default_topic, first.default_group) == (Perm.DENY, Perm.SUB)
    assert first.topics == {"topicA": Perm.DENY, "topicB": Perm.PUB_SUB, "topicC": Perm.SUB}
    assert first.groups == {"groupA": Perm.DENY, "groupB": Perm.PUB_SUB, "groupC": Perm.SUB}
    assert second.admin and second.white.matches("192.168.1.7") and not second.topics


def test_what_is_left_out_or_null_is_denied() -> None:
    assert account() == Account("somebody", SECRET)
    nothing = ("whiteRemoteAddress: null", "admin: ~", "defaultTopicPerm:", "topicPerms: null", "groupPerms:")
    assert account(*nothing) == Account("somebody", SECRET)


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "null\n"])
def test_a_file_without_a_document_says_nothing(text: str) -> None:
    assert read_file(text.encode(), "x") is None


def test_words_of_yaml_for_true_and_false_are_apaches() -> None:
    assert [account(f"admin: {word}").admin for word in ("true", "True", "yes", "on")] == [True] * 4
    assert [account(f"admin: {word}").admin for word in ("false", "no", "off", "'false'")] == [False] * 4


@pytest.mark.parametrize("word", ["PUB", "SUB", "PUB|SUB", "SUB|PUB", "DENY"])
def test_every_right_is_known(word: str) -> None:
    perm = Perm.PUB_SUB if "|" in word else Perm(word)
    found = account(f"defaultTopicPerm: {word}", "topicPerms:", f"- a = {word} ")
    assert (found.default_topic, found.topics) == (perm, {"a": perm})


@pytest.mark.parametrize("word", ["pub", "PUBB", "ANY", "ALL", "PUB,SUB", "SUB|PUB|SUB", "Allow", "'*'"])
@pytest.mark.parametrize("key", ["defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms"])
def test_an_unknown_right_is_refused_and_never_taken_for_any_other(key: str, word: str) -> None:
    lines = (f"{key}: {word}",) if key.startswith("default") else (f"{key}:", f'- "a={word}"')
    with pytest.raises(ConfigError, match=rf"{key} of plain_acl.yml line \d=.*use DENY, PUB, SUB, PUB\|SUB"):
        account(*lines)


@pytest.mark.parametrize(
    "text", ["a", "a=", "=PUB", "a=PUB=SUB", "a*=PUB", "'*=PUB'", "a b=PUB", f"{'a' * 300}=SUB"]
)
def test_a_right_needs_a_name_that_can_exist(text: str) -> None:
    for key in ("topicPerms", "groupPerms"):
        with pytest.raises(ConfigError, match=key):
            account(f"{key}:", f"- {text}")


WRONG = {
    "a list as the document": "- accessKey: somebody",
    "a text as the document": "accounts",
    "accounts that are no list": "accounts: somebody",
    "an account that is no mapping": "accounts: [somebody]",
    "an unknown key of the file": "account: []",
    "an unknown key of an account": f"accounts: [{{accessKey: somebody, secretKey: {SECRET}, admim: true}}]",
    "a key that comes twice": f"accounts: [{{accessKey: somebody, secretKey: {SECRET}, admin: false, admin: true}}]",
    "a key that is a list": "[a]: 1",
    "no access key": f"accounts: [{{secretKey: {SECRET}}}]",
    "no secret": "accounts: [{accessKey: somebody}]",
    "a short access key": f"accounts: [{{accessKey: six666, secretKey: {SECRET}}}]",
    "a list as a secret": f"accounts: [{{accessKey: somebody, secretKey: [{SECRET}]}}]",
    "admin that is neither": f"accounts: [{{accessKey: somebody, secretKey: {SECRET}, admin: maybe}}]",
    "rights that are no list": f"accounts: [{{accessKey: somebody, secretKey: {SECRET}, topicPerms: a=PUB}}]",
    "two rights for one name": (
        f"accounts: [{{accessKey: somebody, secretKey: {SECRET}, topicPerms: [a=PUB, b=SUB, a=DENY]}}]"
    ),
    "an address that is none": f"accounts: [{{accessKey: somebody, secretKey: {SECRET}, whiteRemoteAddress: 1.2.3}}]",
    "a global address that is none": "globalWhiteRemoteAddresses: [10.0.0.0/8]",
    "a version that is no number": "dataVersion: [{counter: many}]",
    "a tag": "accounts: !!python/object/apply:os.system ['true']",
    "no YAML": f"accounts:\n- accessKey: somebody\n  secretKey: '{SECRET}\n",
    "a secret that is an alias": f"accounts:\n- accessKey: somebody\n  secretKey: *{SECRET}\n",
    "a mapping where a text is": f"accounts:\n- accessKey: somebody\n  secretKey: {SECRET}: {SECRET}\n",
    "two documents": "accounts: []\n---\naccounts: []\n",
    "too deep": "[" * 500,
    "control letters": "accounts: \x01",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_a_file_that_cannot_be_understood_is_refused_without_telling_secrets(text: str) -> None:
    with pytest.raises(ConfigError, match=r"plain_acl\.yml") as refused:
        read_file(text.encode(), "plain_acl.yml")
    assert SECRET not in str(refused.value)


def test_an_error_names_the_line_and_what_may_be_meant() -> None:
    with pytest.raises(ConfigError, match=r"admim of .* line 4='admim' .*did you mean admin\?"):
        account("admim: true")


@pytest.mark.parametrize(
    "secret", ["short6", "''", "0123456", "0x1234567", "1_000_000", "12345.678", "2024-01-01"]
)
def test_a_secret_that_apaches_broker_reads_otherwise_is_refused_unseen(secret: str) -> None:
    # 0123456 without quotes is an octal number to Java, whose text is another one.
    with pytest.raises(ConfigError) as refused:
        read(f"accounts: [{{accessKey: somebody, secretKey: {secret}}}]")
    assert secret.strip("'") not in str(refused.value) or secret == "''"


def test_bytes_that_are_no_text_and_files_that_are_too_long_are_refused() -> None:
    with pytest.raises(ConfigError, match="byte 10 is not UTF-8"):
        read_file(b"accounts: \xff", "x")
    with pytest.raises(ConfigError, match="1048577 bytes"):
        read_file(b"#" * (1024 * 1024 + 1), "x")


def test_repr_tells_no_secret() -> None:
    assert SECRET not in repr(account())


# -- writing ---------------------------------------------------------------------------------------------------------

NAMES = st.text(st.sampled_from("abcXYZ019_%|-"), min_size=1, max_size=12)
KEYS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=7, max_size=20)
PERMS = st.sampled_from(Perm)
PATTERNS = st.sampled_from(["", "*", "1.2.3.4", "10.0.*.*", "1.2.3.{4,5}", "::1", "1.2.3.4,::1"]).map(
    read_pattern
)
ACCOUNTS = st.builds(
    Account,
    access_key=KEYS,
    secret_key=KEYS,
    white=PATTERNS,
    admin=st.booleans(),
    default_topic=PERMS,
    default_group=PERMS,
    topics=st.dictionaries(NAMES, PERMS, max_size=4),
    groups=st.dictionaries(NAMES, PERMS, max_size=4),
)


@given(
    st.lists(PATTERNS.filter(lambda pattern: bool(pattern.text)), max_size=3).map(tuple),
    st.lists(ACCOUNTS, max_size=3).map(tuple),
    st.integers(0, 2**62),
)
def test_what_is_written_is_read_again_here_and_as_plain_yaml(
    white: tuple[object, ...], accounts: tuple[Account, ...], counter: int
) -> None:
    file = AccountFile(white, accounts, counter, 7)  # type: ignore[arg-type]
    text = file.text()
    assert read_file(text, "x") == file
    # Java's reader knows the same notations of numbers, dates and booleans: every key and secret is a text to it.
    for row, known in zip(yaml.safe_load(text)["accounts"], accounts, strict=True):
        assert (row["accessKey"], row["secretKey"]) == (known.access_key, known.secret_key)


def test_a_changed_account_keeps_its_place_and_a_removed_one_goes_as_often_as_it_is_there() -> None:
    one, two, three = (Account(f"account{n}", SECRET) for n in range(3))
    file = AccountFile(accounts=(one, two, one, three))
    changed = Account("account0", "another-secret")
    assert file.with_account(changed).accounts == (changed, two, three)
    assert file.with_account(Account("account9", SECRET)).accounts[-1].access_key == "account9"
    assert file.without_account("account0").accounts == (two, three)
    assert (file.next_version(5).counter, file.next_version(5).timestamp) == (1, 5)


# -- anything at all -------------------------------------------------------------------------------------------------

LINES = st.sampled_from(
    [
        "accounts:",
        "- accessKey: somebody",
        f"  secretKey: {SECRET}",
        "  admin: true",
        "  topicPerms:",
        "  - a=PUB",
        "  - &x a=DENY",
        "  - *x",
        "  defaultTopicPerm: ALL",
        "globalWhiteRemoteAddresses:",
        "- '*'",
        "- 10.0.0.*",
        "dataVersion: [{counter: 1, timestamp: 2}]",
        "<<: *x",
        "? {a: b}",
        "'",
        "{",
        "]",
        "---",
    ]
)


@given(st.lists(LINES, max_size=14).map("\n".join) | st.text(max_size=60))
def test_every_text_is_a_file_or_is_refused_by_name(text: str) -> None:
    try:
        found = read_file(text.encode("utf-8", "surrogatepass"), "f.yml")
    except ConfigError as refused:
        assert "f.yml" in str(refused) and SECRET not in str(refused)
        return
    if found is not None:
        assert read_file(found.text(), "f.yml") == found


@given(st.binary(max_size=80))
def test_every_bytes_are_a_file_or_are_refused_by_name(data: bytes) -> None:
    try:
        read_file(data, "f.yml")
    except ConfigError as refused:
        assert "f.yml" in str(refused)
