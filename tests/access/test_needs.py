"""The table of needs: every request that a server answers has a row, and the rows say what they should."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gimbalmq.access.named import MOST_LIST_BYTES, MOST_NAMES, MOST_ROWS
from gimbalmq.access.needs import NAMESERVER_CLUSTER, Level, NeedTable
from gimbalmq.access.policies import Action, Asked, Pattern, Rules
from gimbalmq.errors import InvalidParameterError, RocketMQError
from gimbalmq.model.topics import HOLD_OTHERS
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.testing import LocalCluster
from tests.support import run

STRICT, APACHE = NeedTable.of_broker(Rules.STRICT), NeedTable.of_broker(Rules.APACHE)
PLACE = 4096
OFFSET_ID = f"7F00000100002A9F{PLACE:016X}"


def _topic_at(offset: int) -> str | None:
    return {PLACE: "Stored", PLACE + 1: "%RETRY%other"}.get(offset)


STRICT.topic_at = APACHE.topic_at = _topic_at


def _told(wanted: list[Asked]) -> list[str]:
    return [
        f"{one.resource} {','.join(action for action in Action if action in one.actions)}" for one in wanted
    ]


def _asked(
    table: NeedTable, code: int, fields: Mapping[str, str] | None = None, body: object = None
) -> list[str]:
    command = RemotingCommand(code, fields, b"" if body is None else json.dumps(body).encode())
    return _told(table.asked(table.need(code), command))


def test_every_request_that_a_server_answers_has_a_row() -> None:
    async def handled() -> tuple[set[int], set[int]]:
        # Users are kept, so the requests about them are answered as well.
        keys = {"authenticationMetadataProvider": "local"}
        async with LocalCluster(properties=keys, namesrv_properties=keys) as cluster:
            remoting = cluster.nameserver._remoting
            assert remoting is not None
            return set(cluster.broker.handlers.by_code), set(remoting._handlers.by_code)

    broker, nameserver = run(handled())
    assert {3001, 3010} <= broker & nameserver
    assert len(broker) > 60 and len(nameserver) > 20
    for rules in Rules:
        assert NeedTable.of_broker(rules).missing(broker) == []
    for public in (True, False):
        assert NeedTable.of_nameserver(routes_public=public).missing(nameserver) == []


@pytest.mark.parametrize("rules", Rules)
def test_every_number_that_we_know_has_a_row_somewhere(rules: Rules) -> None:
    known = NeedTable.of_broker(rules).rows.keys() | NeedTable.of_nameserver().rows.keys()
    assert set(RequestCode) - known == set()


def test_nothing_on_a_broker_is_open_to_everybody() -> None:
    assert [
        code for table in (STRICT, APACHE) for code, need in table.rows.items() if need.level is Level.OPEN
    ] == []
    assert STRICT.need(123_456).level is Level.SIGNED


GROUP_TOPIC = {"consumerGroup": "g", "topic": "T"}
RETRY_OF_OTHER = {"consumerGroup": "g", "topic": "%RETRY%other"}
BEAT = {
    "clientID": "c",
    "consumerDataSet": [
        {"groupName": "g", "subscriptionDataSet": [{"topic": "T"}, {"topic": "%RETRY%g"}]},
        {"groupName": "h", "subscriptionDataSet": [{"topic": "%RETRY%other"}]},
    ],
    "producerDataSet": [{"groupName": "p"}],
}
LOCKS = {
    "clientId": "c",
    "consumerGroup": "g",
    "mqSet": [
        {"topic": "T", "brokerName": "b", "queueId": 0},
        {"topic": "T", "brokerName": "b", "queueId": 1},
        {"topic": "%RETRY%g", "brokerName": "b", "queueId": 0},
    ],
}
OWN = "Cluster:DefaultCluster"

SAME: list[tuple[int, Mapping[str, str], list[str]]] = [
    (10, {"producerGroup": "p", "topic": "T"}, ["Topic:T Pub"]),
    (310, {"a": "p", "b": "T"}, ["Topic:T Pub"]),
    (320, {"a": "p", "b": "T"}, ["Topic:T Pub"]),
    (310, {"a": "g", "b": "%DLQ%g"}, ["Topic:%DLQ%g Pub"]),
    # Whose retry topic it is counts, not who the sender says he is.
    (310, {"a": "CLIENT_INNER_PRODUCER", "b": "%RETRY%g"}, ["Group:g Sub"]),
    (320, {"a": "mine", "b": "%RETRY%g"}, ["Group:g Sub"]),
    (10, {"producerGroup": "mine", "topic": "%RETRY%g"}, ["Group:g Sub"]),
    (11, GROUP_TOPIC, ["Group:g Sub", "Topic:T Sub"]),
    (11, {"consumerGroup": "g", "topic": "%RETRY%g"}, ["Group:g Sub"]),
    (12, {"topic": "T"}, ["Topic:T Sub,Get"]),
    (14, GROUP_TOPIC, ["Group:g Sub,Get", "Topic:T Sub,Get"]),
    (15, GROUP_TOPIC, ["Group:g Sub,Update", "Topic:T Sub,Update"]),
    (35, {"clientID": "c", "consumerGroup": "g"}, ["Group:g Sub"]),
    (35, {"clientID": "c", "producerGroup": "p"}, []),
    (38, {"consumerGroup": "g"}, ["Group:g Sub,Get"]),
    (17, {"topic": "T"}, ["Topic:T Create"]),
    (17, {"topic": "%RETRY%g"}, ["Group:g Create"]),
    (215, {"topic": "T"}, ["Topic:T Delete"]),
    (207, {"groupName": "g"}, ["Group:g Delete"]),
    *((code, {"topic": "T"}, ["Topic:T Get"]) for code in (29, 30, 31, 32, 202, 300, 351)),
    (323, {"topic": "T"}, ["Topic:T Update"]),
    (370, {"topic": "T"}, ["Topic:T Pub"]),
    *((code, {"consumerGroup": "g"}, ["Group:g Get"]) for code in (203, 307)),
    *((code, {"group": "g"}, ["Group:g Get"]) for code in (343, 352)),
    (208, {"consumerGroup": "g"}, ["Group:g Get"]),
    (208, {"consumerGroup": "g", "topic": ""}, ["Group:g Get"]),
    (208, {**GROUP_TOPIC, "topicList": "U;V"}, ["Group:g Get", "Topic:T Get", "Topic:U Get", "Topic:V Get"]),
    *((code, {"group": "g", "topic": "T"}, ["Group:g Get", "Topic:T Get"]) for code in (303, 345, 223)),
    (321, GROUP_TOPIC, ["Group:g Get", "Topic:T Get"]),
    (321, {"topic": "T"}, ["Topic:T Get"]),
    (
        308,
        {"filterGroups": "f,h", "compareGroup": "g", "topic": "T"},
        ["Group:f Get", "Group:h Get", "Group:g Get", "Topic:T Get"],
    ),
    *((code, {"group": "g", "topic": "T"}, ["Group:g Update", "Topic:T Update"]) for code in (222, 353)),
    *((code, {}, [f"{OWN} Get"]) for code in (204, 315, 317, 328, 3004, 3005, 3009, 3010)),
]


@pytest.mark.parametrize(("code", "fields", "wanted"), SAME)
def test_what_both_rules_ask_for(code: int, fields: Mapping[str, str], wanted: list[str]) -> None:
    assert _asked(STRICT, code, fields) == wanted
    assert _asked(APACHE, code, fields) == wanted


BACK = {"group": "g", "delayLevel": "0", "originTopic": "T"}
END = {"producerGroup": "p", "tranStateTableOffset": "1", "commitOrRollback": "8"}
TOPICS = {"topicConfigList": [{"topicName": "T"}, {"topicName": "%RETRY%g"}]}
GROUPS = {"groupConfigList": [{"groupName": "g"}, {"groupName": "h"}]}

DIFFERENT: list[tuple[str, int, Mapping[str, str], object, list[str], list[str]]] = [
    ("reply", 324, {"topic": "R", "producerGroup": "p"}, None, ["Topic:R Pub"], []),
    ("reply v2", 325, {"b": "R", "a": "p"}, None, ["Topic:R Pub"], []),
    ("pull of another's", 11, RETRY_OF_OTHER, None, ["Group:g Sub", "Group:other Sub"], ["Group:g Sub"]),
    ("lite pull", 361, GROUP_TOPIC, None, ["Group:g Sub", "Topic:T Sub"], []),
    (
        "offset of another's",
        14,
        RETRY_OF_OTHER,
        None,
        ["Group:g Sub,Get", "Group:other Sub,Get"],
        ["Group:g Sub,Get"],
    ),
    (
        "commit of another's",
        15,
        RETRY_OF_OTHER,
        None,
        ["Group:g Sub,Update", "Group:other Sub,Update"],
        ["Group:g Sub,Update"],
    ),
    (
        "heartbeat",
        34,
        {},
        BEAT,
        ["Group:g Sub", "Group:h Sub", "Group:other Sub", "Topic:T Sub"],
        ["Group:g Sub", "Group:h Sub", "Topic:T Sub"],
    ),
    ("producer's heartbeat", 34, {}, {"clientID": "c", "producerDataSet": [{"groupName": "p"}]}, [], []),
    ("lock", 41, {}, LOCKS, ["Group:g Sub", "Topic:T Sub"], ["Group:g Sub", "Topic:T Sub"]),
    ("unlock", 42, {}, LOCKS, ["Group:g Sub", "Topic:T Sub"], ["Group:g Sub", "Topic:T Sub"]),
    (
        "sent back",
        36,
        {**BACK, "offset": f"{PLACE}"},
        None,
        ["Group:g Sub", "Topic:Stored Sub"],
        ["Group:g Sub"],
    ),
    (
        "other's sent back",
        36,
        {**BACK, "offset": f"{PLACE + 1}"},
        None,
        ["Group:g Sub", "Group:other Sub"],
        ["Group:g Sub"],
    ),
    ("nothing sent back", 36, {**BACK, "offset": "7"}, None, ["Group:g Sub"], ["Group:g Sub"]),
    ("viewed", 33, {"offset": f"{PLACE}"}, None, ["Topic:Stored Get"], []),
    (
        "viewed by a wrong name",
        33,
        {"offset": f"{PLACE}", "topic": "T"},
        None,
        ["Topic:Stored Get"],
        ["Topic:T Get"],
    ),
    ("transaction", 37, {**END, "commitLogOffset": f"{PLACE}"}, None, ["Topic:Stored Pub"], []),
    (
        "transaction by a wrong name",
        37,
        {**END, "commitLogOffset": f"{PLACE}", "topic": "T"},
        None,
        ["Topic:Stored Pub"],
        ["Topic:T Pub"],
    ),
    (
        "handed over",
        309,
        {"consumerGroup": "g", "msgId": OFFSET_ID, "topic": "T"},
        None,
        ["Group:g Sub", "Topic:Stored Sub"],
        ["Group:g Sub", "Topic:T Sub"],
    ),
    (
        "handed over, not there yet",
        309,
        {"consumerGroup": "g", "msgId": OFFSET_ID[:-1] + "7"},
        None,
        ["Group:g Sub", f"{OWN} Get"],
        ["Group:g Sub"],
    ),
    (
        "clone",
        314,
        {"srcGroup": "s", "destGroup": "g", "topic": "T"},
        None,
        ["Group:s Get", "Group:g Update", "Topic:T Update"],
        ["Group:g Update", "Topic:T Update"],
    ),
    (
        "clone of all topics",
        314,
        {"srcGroup": "s", "destGroup": "g", "topic": ""},
        None,
        ["Group:s Get", "Group:g Update", f"{OWN} Update"],
        ["Group:g Update"],
    ),
    ("topics", 18, {}, TOPICS, ["Topic:T Create", "Group:g Create"], []),
    ("group", 200, {}, {"groupName": "g"}, ["Group:g Create"], []),
    ("groups", 225, {}, GROUPS, ["Group:g Create", "Group:h Create"], []),
    *(("whole tables", code, {}, None, [f"{OWN} Get"], []) for code in (21, 26, 28, 43, 45, 201, 305)),
    *(("upkeep", code, {}, None, [f"{OWN} Update"], []) for code in (25, 306, 316, 329)),
    (
        "users of another cluster",
        3005,
        {"clusterName": "elsewhere"},
        None,
        [f"{OWN} Get"],
        ["Cluster:elsewhere Get"],
    ),
]


@pytest.mark.parametrize(
    ("code", "fields", "body", "strict", "apache"),
    [row[1:] for row in DIFFERENT],
    ids=[f"{row[1]} {row[0]}" for row in DIFFERENT],
)
def test_what_each_rule_asks_for(
    code: int, fields: Mapping[str, str], body: object, strict: list[str], apache: list[str]
) -> None:
    assert _asked(STRICT, code, fields, body) == strict
    assert _asked(APACHE, code, fields, body) == apache


def test_only_super_users_change_users_and_policies() -> None:
    for code in (3001, 3002, 3003, 3006, 3007, 3008):
        assert STRICT.need(code).level is Level.SUPER_ONLY
        assert _asked(APACHE, code) == [f"{OWN} Update"]
    for code in range(50, 55):
        assert STRICT.need(code).level is APACHE.need(code).level is Level.SUPER_ONLY


def test_messages_by_place_need_the_cluster_if_nobody_knows_places() -> None:
    assert _asked(NeedTable.of_broker(), 33, {"offset": f"{PLACE}"}) == [f"{OWN} Get"]


@pytest.mark.parametrize("code", sorted(code for code in STRICT.rows if STRICT.rows[code].pieces))
def test_a_request_that_says_nothing_is_refused_or_needs_something(code: int) -> None:
    try:
        wanted = _asked(STRICT, code)
    except RocketMQError:
        return
    # Whoever leaves, and a heartbeat without consumers, need no right.
    assert wanted or code in (RequestCode.UNREGISTER_CLIENT, RequestCode.HEART_BEAT)


def test_long_lists_need_the_right_to_change_all() -> None:
    rows = [{"topicName": f"T{number}"} for number in range(MOST_ROWS + 1)]
    assert len(_asked(STRICT, 18, {}, {"topicConfigList": rows[:-1]})) == MOST_ROWS
    assert _asked(STRICT, 18, {}, {"topicConfigList": rows}) == [f"{OWN} Update"]
    large = [{"groupName": "g", "attributes": {"+a": "x" * MOST_LIST_BYTES}}]
    assert _asked(STRICT, 225, {}, {"groupConfigList": large}) == [f"{OWN} Update"]


def test_a_heartbeat_names_so_many_topics_and_no_more() -> None:
    topics = [{"topic": f"T{number}"} for number in range(MOST_NAMES)]
    beat = {"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": topics[:-1]}]}
    assert len(_asked(STRICT, 34, {}, beat)) == MOST_NAMES
    beat = {"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": topics}]}
    with pytest.raises(InvalidParameterError, match=r"1 groups and 1000 topics"):
        _asked(STRICT, 34, {}, beat)


def test_a_list_names_so_many_topics_and_no_more() -> None:
    names = [f"T{number}" for number in range(MOST_NAMES + 1)]
    asked = {"consumerGroup": "g", "topicList": ";".join(names[:-1])}
    assert len(_asked(STRICT, 208, asked)) == MOST_NAMES + 1
    with pytest.raises(InvalidParameterError, match="topicList"):
        _asked(STRICT, 208, asked | {"topicList": ";".join(names)})


@pytest.mark.parametrize("table", [STRICT, APACHE], ids=["strict", "apache"])
@pytest.mark.parametrize("topic", ["T", "%RETRY%g", "%RETRY%other"])
def test_a_send_asks_for_the_same_if_only_its_topic_is_known(table: NeedTable, topic: str) -> None:
    assert _told([table.of_send(topic)]) == _asked(table, 310, {"a": "g", "b": topic})


@pytest.mark.parametrize("topic", sorted(HOLD_OTHERS))
def test_messages_of_other_topics_that_wait_need_a_right_to_the_cluster(topic: str) -> None:
    fields = {"consumerGroup": "g", "topic": topic}
    for code in (11, 12, 361):
        assert _asked(STRICT, code, fields)[-1] == "Cluster:DefaultCluster Update"
        assert "Cluster" not in "".join(_asked(APACHE, code, fields))
    beat = {"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": topic}]}]}
    assert "Cluster:DefaultCluster Update" in _asked(STRICT, 34, {}, beat)
    reset = fields | {"group": "g", "timestamp": "0"}
    assert _asked(STRICT, 222, reset)[-1] == "Cluster:DefaultCluster Update"
    assert _asked(STRICT, 202, fields) == [f"Topic:{topic} Get"], "numbers are nobody's messages"
    assert _asked(NeedTable.of_nameserver(routes_public=False), 105, fields) == [f"Topic:{topic} Pub,Sub,Get"]


def test_the_progress_of_transactions_needs_a_right_to_the_cluster() -> None:
    group = "CID_RMQ_SYS_TRANS"
    for code, fields in (
        (15, {"consumerGroup": group, "topic": "T"}),
        (207, {"groupName": group}),
        (222, {"group": group, "topic": "T"}),
        (314, {"srcGroup": "g", "destGroup": group, "topic": "T"}),
    ):
        assert _asked(STRICT, code, fields)[-1] == "Cluster:DefaultCluster Update"
        assert "Cluster" not in "".join(_asked(APACHE, code, fields))
    assert _asked(STRICT, 203, {"consumerGroup": group}) == [f"Group:{group} Get"]


def test_a_name_server_lets_brokers_and_administrators_change_things() -> None:
    public, private = NeedTable.of_nameserver(), NeedTable.of_nameserver(routes_public=False)
    for table in (public, private):
        assert {code for code in (103, 104, 322, 904) if table.need(code).level is Level.SERVER} == {
            103,
            104,
            322,
            904,
        }
        for code in (
            100,
            101,
            102,
            219,
            205,
            327,
            216,
            217,
            318,
            319,
            *range(3001, 3004),
            *range(3006, 3009),
        ):
            assert table.need(code).level is Level.SUPER_ONLY, code
        for code in (206, 224, 304, 311, 312, 313):
            assert table.need(code).level is Level.SIGNED, code
        assert _asked(table, 3005) == [f"Cluster:{NAMESERVER_CLUSTER} Get"]
    assert {code for code, need in public.rows.items() if need.level is Level.OPEN} == {105, 106, 901}
    assert not any(need.level is Level.OPEN for need in private.rows.values())
    assert _asked(private, 105, {"topic": "T"}) == ["Topic:T Pub,Sub,Get"]
    assert _asked(private, 105, {"topic": "%RETRY%g"}) == ["Group:g Sub,Get"]
    assert _asked(private, 105, {"topic": "TBW102"}) == []


_NAMES = sorted(
    {"topic", "b", "a", "group", "groupName", "consumerGroup", "offset", "msgId", "commitLogOffset"}
)
_VALUES = st.text(max_size=20) | st.sampled_from(
    ["", "-1", f"{PLACE}", "1e3", "0x10", OFFSET_ID, "%RETRY%", "*", "\ud800"]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "consumerDataSet",
                    "groupName",
                    "subscriptionDataSet",
                    "topic",
                    "mqSet",
                    "topicConfigList",
                    "topicName",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(
    code=st.sampled_from(sorted(STRICT.rows)),
    fields=st.none() | st.dictionaries(st.sampled_from(_NAMES), _VALUES),
    body=st.binary(max_size=40) | _JSON.map(lambda value: json.dumps(value).encode()),
)
def test_whatever_a_request_says_it_is_understood_or_refused(
    code: int, fields: dict[str, str] | None, body: bytes
) -> None:
    for table in (STRICT, APACHE):
        try:
            wanted = table.asked(table.need(code), RemotingCommand(code, fields, body))
        except RocketMQError:
            continue
        assert all(one.actions and one.resource.pattern == Pattern.LITERAL for one in wanted)
