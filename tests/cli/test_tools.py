"""Every command that asks a cluster, run as a person would type it, against a cluster of ours."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gimbalmq import ConsumeFromWhere, ConsumeResult, MessageView
from gimbalmq.cli import nouns
from gimbalmq.cli.main import main
from gimbalmq.model.flags import PERM_READ, PERM_WRITE
from gimbalmq.sync import Admin, PushConsumer
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from tests.cli.commands import environment

Run = Callable[..., str]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadCluster]:
    with LocalCluster.in_thread() as cluster:
        yield cluster


@pytest.fixture
def run(cluster: ThreadCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process; its output, and the exit code checked."""
    monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)

    def run(*words: object, code: int = 0, error: str | None = None) -> str:
        found = main([str(word) for word in words])
        shown = capsys.readouterr()
        assert found == code, shown.out + shown.err
        if error is not None:
            assert re.search(error, shown.err), shown.err
        return shown.out

    return run


@pytest.fixture
def admin(cluster: ThreadCluster) -> Iterator[Admin]:
    with Admin(cluster.namesrv) as admin:
        yield admin


_numbers = iter(range(10_000))


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"topic-{next(_numbers)}"
    admin.topics.create(name, queues=2)
    return name


def send(run: Run, topic: str, count: int, *more: object) -> list[str]:
    """Messages to both queues in turn; their ids."""

    def one(index: int) -> str:
        place = ("--queue", f"broker-a/{index % 2}", "--key", f"key-{index}")
        return str(
            json.loads(run("message", "send", topic, f"body-{index}", *place, *more, "--json"))["msgId"]
        )

    return [one(index) for index in range(count)]


# -- the command line itself ----------------------------------------------------------


def test_every_mqadmin_name_leads_to_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    for name in nouns.MQADMIN:
        with pytest.raises(SystemExit) as stopped:
            main([name, "--help"])
        assert stopped.value.code == 0, name
        assert f"usage: gimbalmq {name} " in capsys.readouterr().out


@pytest.mark.parametrize("noun", nouns.NOUNS)
def test_no_mqadmin_name_is_forgotten_in_the_table(noun: str) -> None:
    """Only the module of the name's noun is imported, so a name that is not in the table is nowhere."""
    commands = argparse.ArgumentParser().add_subparsers()
    nouns.add_commands(commands, noun)
    found = {*commands.choices} - {*nouns.NOUNS}
    home = nouns.NOUNS[noun][0]
    assert found == {name for name, of in nouns.MQADMIN.items() if nouns.NOUNS[of][0] == home}


@pytest.mark.parametrize("noun", [noun for noun in nouns.NOUNS if noun not in ("pipeline", "dashboard")])
def test_every_noun_has_help(noun: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([noun, "--help"])
    assert stopped.value.code == 0
    assert f"usage: gimbalmq {noun} " in capsys.readouterr().out


def test_a_name_server_may_be_named_before_the_noun(
    cluster: ThreadCluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-n", cluster.namesrv, "topic", "list"]) == 0
    assert topic in capsys.readouterr().out


@pytest.mark.parametrize("words", ["topic list", "cluster list", "topic route T", "group progress billing"])
def test_a_brokers_address_in_place_of_a_name_servers_is_told(
    words: str, cluster: ThreadCluster, run: Run
) -> None:
    address = cluster.broker.address
    run(
        *words.split(),
        "-n",
        address,
        code=1,
        error=f"gimbalmq: {address} is no name server: .* broker's port",
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_nouns_verbs_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    for word in ("topic", "resize", "max-lag", "redrive"):
        assert word in printed


def test_bash_takes_the_completion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    asked = (
        capsys.readouterr().out
        + '\nCOMP_WORDS=(gimbalmq topic re); COMP_CWORD=2; _gimbalmq; echo "${COMPREPLY[@]}"\n'
        + 'COMP_WORDS=(gimbalmq gr); COMP_CWORD=1; _gimbalmq; echo "${COMPREPLY[@]}"\n'
        + 'COMP_WORDS=(gimbalmq group progress billing --max); COMP_CWORD=4; _gimbalmq; echo "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.splitlines() == ["resize", "group", "--max-lag"]


def test_only_what_a_command_needs_is_imported() -> None:
    """So that it answers at once: numpy, uvloop and the servers stay out."""
    code = (
        "import sys; from gimbalmq.cli.main import main\n"
        "main(['topic', 'list', '-n', '127.0.0.1:1', '--timeout', '1'])\n"
        "heavy = {'numpy', 'uvloop', 'gimbalmq.broker.broker', 'gimbalmq.nameserver.server', 'pyarrow'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"
    assert "127.0.0.1:1" in done.stderr


def test_wrong_values_are_named_with_the_remedy(run: Run, topic: str) -> None:
    run("topic", "route", code=2, error="name a topic")
    run("topic", "create", "no good", code=2, error="illegal")
    run("topic", "create", topic, "--perm", "X", code=2, error="--perm='X'.*RW")
    run("message", "print", topic, "--since", "yesterday", code=2, error="yesterday.*15m")
    run("group", "reset", "g", topic, "--to", "soon", code=2, error="soon")
    run("group", "reset", "g", topic, code=2, error="say where to")
    run("group", "reset", "g", topic, "--to-offset", 1, "--queue", "broker-z/1", code=2, error="broker-a/0")
    run("config", "get", "broker-a", "noSuchKey", code=2, error="noSuchKey")
    run("deadletter", "show", "g", "--matching", "(", code=2, error="regular expression")
    run("config", "set", "broker-a", "noSuchKey=1", code=1, error="noSuchKey.*config get")
    run("cluster", "writable", "nobody", "no", "--yes", code=2, error="nobody.*broker-a")
    run("message", "send", "no good", "text", code=2, error=r"^gimbalmq: The specified topic\[no good\]")
    run("message", "send", topic, "", code=2, error="BODY=''.*after the topic")
    run("message", "offset", topic, "broker-a", 0, code=2, error="'broker-a'.*broker-a/3")
    run("message", "offset", topic, "broker-a/0", "x", code=2, error="OFFSET='x'")
    run("topic", "route", topic, "-t", topic, code=2, error=f"'{topic}'.*flag")
    run(
        "topic",
        "list",
        "-n",
        "127.0.0.1:1",
        code=1,
        error="127.0.0.1:1.*gimbalmq server starts one.*--namesrv",
    )
    run("topic", "list", "-n", "nonsense", code=2, error="nonsense.*host:port")


def test_what_is_not_there_is_named_with_where_to_look(run: Run, topic: str) -> None:
    run("topic", "route", "nowhere", code=3, error="nowhere; gimbalmq topic list")
    run("group", "connections", "nobody", code=3, error="^gimbalmq: no consumer of group nobody.*group list")
    run("group", "show", "nobody", code=3, error="nobody; gimbalmq group list")
    run("group", "progress", "nobody", "--max-lag", 0, code=3, error="nobody; gimbalmq group list")
    run("group", "progress", "nobody", "-t", "nowhere", code=3, error="nowhere; gimbalmq topic list")
    run("deadletter", "show", "nobody", code=3, error="nobody has no dead letters; gimbalmq deadletter list")
    run("deadletter", "redrive", "nobody", "--yes", code=3, error="nobody has no dead letters")
    run("message", "offset", topic, "broker-a/0", 9, code=3, error=f"broker-a/0 of {topic} is empty")
    (sent,) = send(run, topic, 1)
    last = json.loads(run("message", "id", sent, "-t", topic, "--json"))["offsetMsgId"]
    beyond = f"{last[:-8]}7FFFFFFF"
    run("message", "id", beyond, code=3, error=f"has no message {beyond}")
    assert f"Topic {topic} has no such message" in run("message", "print", topic, "--tags", "none", code=3)
    assert "No producer of group nobody" in run("group", "producers", "nobody", "-t", topic)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("topic", "create", "t", "--queues", "0"),
            "--queues: '0' cannot be used: write a number, 1 to 65536",
        ),
        (("topic", "resize", "t", "many"), "QUEUES: 'many' cannot be used: write a number, 1 to 65536"),
        (
            ("group", "progress", "g", "--max-lag", "-1"),
            "--max-lag: '-1' cannot be used: write a number, 0 or more",
        ),
        (("group", "reset", "g", "t", "--to-offset", "x"), "--to-offset: 'x'"),
        (
            ("message", "key", "t", "k", "--limit", "0"),
            "--limit: '0' cannot be used: write a number, 1 or more",
        ),
        (("message", "tail", "t", "--newest", "-1"), "--newest: '-1'"),
        (
            ("message", "send", "t", "x", "--delay", "nan"),
            "--delay: 'nan' cannot be used: write a number above 0",
        ),
        (("message", "import", "f", "--rate", "0"), "--rate: '0' cannot be used: write a number above 0"),
        (("deadletter", "redrive", "g", "--rate", "-1"), "--rate: '-1'"),
        (("topic", "list", "--timeout", "soon"), "--timeout: 'soon'"),
        (("dashboard", "--port", "99999"), "--port: '99999' cannot be used: write a number, 0 to 65535"),
        (
            ("config", "set", "broker-a", "justAKey"),
            "'justAKey' is not KEY=VALUE: write a key, = and its value",
        ),
        (("server", "--set", "=1"), "--set: '=1' is not KEY=VALUE: write a key, = and its value"),
    ],
)
def test_words_that_cannot_be_are_named_with_those_that_can(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err


# -- clusters and settings ------------------------------------------------------------


@pytest.mark.parametrize("words", [("cluster", "list"), ("clusterList",)])
def test_cluster_list(run: Run, cluster: ThreadCluster, words: tuple[str, ...]) -> None:
    printed = run(*words)
    assert re.search(rf"DefaultCluster +broker-a +0 +{cluster.broker.address}", printed)
    (broker,) = json.loads(run(*words, "--json"))
    assert broker["broker"] == "broker-a"


@pytest.mark.parametrize("words", [("cluster", "status", "broker-a"), ("brokerStatus", "-b", "broker-a")])
def test_cluster_status(run: Run, words: tuple[str, ...]) -> None:
    assert re.search(r"^brokerVersionDesc +V\d", run(*words), re.MULTILINE)


def test_config_is_read_and_changed(run: Run, cluster: ThreadCluster) -> None:
    assert "brokerName=broker-a" in run("config", "get", "broker-a").splitlines()
    assert run("config", "set", "broker-a", "fileReservedTime=24").startswith("broker-a: fileReservedTime=24")
    assert run("config", "get", "broker-a", "fileReservedTime") == "fileReservedTime=24\n"
    run("updateBrokerConfig", "-b", cluster.broker.address, "-k", "fileReservedTime", "-v", "48")
    assert "fileReservedTime=48" in run("getBrokerConfig", "-b", cluster.broker.address)
    assert json.loads(run("config", "get", "broker-a", "fileReservedTime", "--json")) == {
        "fileReservedTime": "48"
    }
    assert json.loads(run("config", "get", "--of-namesrv", "--json"))


def test_a_broker_is_taken_out_of_rotation_and_back(run: Run, admin: Admin, topic: str) -> None:
    run("cluster", "writable", "broker-a", "no", code=4)
    run("cluster", "writable", "broker-a", "no", "--yes")
    (view,) = [view for view in admin.topics.all() if view.topic == topic]
    assert view.perm == "R-"
    run("cluster", "writable", "broker-a", "yes")
    (view,) = [view for view in admin.topics.all() if view.topic == topic]
    assert view.perm == "RW"


def test_mqadmins_words_for_that_ask_nothing_and_count_by_name_server(
    run: Run, cluster: ThreadCluster, admin: Admin, topic: str
) -> None:
    address = re.escape(cluster.namesrv)
    wiped = re.fullmatch(
        rf"{address}: (\d+) topics of broker-a are read-only now.\n", run("wipeWritePerm", "-b", "broker-a")
    )
    assert wiped is not None and int(wiped[1]) >= 1
    assert admin.topics.route(topic).queue_datas[0].perm == PERM_READ
    printed = json.loads(run("addWritePerm", "-b", "broker-a", "--json"))
    assert printed["nameservers"] == {cluster.namesrv: int(wiped[1])}
    assert admin.topics.route(topic).queue_datas[0].perm == PERM_READ | PERM_WRITE
    run("wipeWritePerm", "-b", "broker-z", code=2, error="'broker-z'.*there is broker-a")


# -- topics ---------------------------------------------------------------------------


def test_a_topic_is_made_shown_resized_and_deleted(run: Run) -> None:
    """S1-14"""
    run("topic", "create", "shop", "--queues", 4)
    assert re.search(r"^shop +normal +broker-a +4 +4 +RW$", run("topic", "list"), re.MULTILINE)
    assert re.search(
        r"^broker-a +DefaultCluster +0=127\.0\.0\.1:\d+ +4 +4 +RW$", run("topic", "route", "shop"), re.M
    )
    assert json.loads(run("topicRoute", "-t", "shop", "--json"))["queueDatas"][0]["readQueueNums"] == 4
    assert "can still be read" in run("topic", "resize", "shop", 2)
    run("topic", "resize", "shop", 2, "--at-once", code=4)
    run("topic", "resize", "shop", 2, "--at-once", "--yes")
    assert [item["queueId"] for item in json.loads(run("topicStatus", "-t", "shop", "--json"))] == [0, 1]
    run("topic", "delete", "shop", code=4, error="say --yes")
    run("deleteTopic", "-c", "DefaultCluster", "-t", "shop", "--yes")
    assert "shop" not in run("topicList")
    run("updateTopic", "-c", "DefaultCluster", "-t", "shop", "-r", 3, "-w", 5, "-p", 6)
    assert re.search(r"^shop +normal +broker-a +3 +5 +RW$", run("topic", "list"), re.MULTILINE)
    assert "%RETRY%" not in run("topic", "list")
    assert "TBW102" in run("topic", "list", "--all")


def test_what_changes_is_shown_again(cluster: ThreadCluster, topic: str) -> None:
    watching = subprocess.Popen(
        [sys.executable, "-m", "gimbalmq", "topic", "stats", topic, "--json", "--watch", "0.1"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment() | {"NAMESRV_ADDR": cluster.namesrv},
    )
    assert watching.stdout is not None
    try:
        starts = 0
        for line in watching.stdout:
            starts += line.startswith("[")
            if starts == 3:
                break
    finally:
        watching.terminate()
        watching.wait(10)
        watching.stdout.close()
    assert starts == 3


# -- messages -------------------------------------------------------------------------


def test_messages_are_found_by_id_key_and_place(run: Run, topic: str) -> None:
    ids = send(run, topic, 3, "--tags", "new", "--property", "colour=red")
    shown = json.loads(run("message", "id", ids[1], "--topic", topic, "--json"))
    assert (shown["body"], shown["tags"], shown["keys"]) == ("body-1", "new", ["key-1"])
    assert shown["properties"]["colour"] == "red"
    assert "body-1" in run("queryMsgById", "-i", shown["offsetMsgId"])
    assert "body-1" in run("queryMsgByUniqueKey", "-t", topic, "-i", ids[1])
    run("message", "id", ids[1], code=3, error="--topic")
    assert "body-2" in run("message", "key", topic, "key-2")
    assert "body-2" in run("queryMsgByKey", "-t", topic, "-k", "key-2")
    run("message", "key", topic, "no-such-key", code=3)
    place = (f"broker-a/{shown['queueId']}", shown["offset"])
    assert "body-1" in run("message", "offset", topic, *place)
    by_flags = ("-t", topic, "-b", "broker-a", "-i", shown["queueId"], "-o", shown["offset"])
    assert "body-1" in run("queryMsgByOffset", *by_flags)
    run("message", "offset", topic, "broker-a/0", 99, code=3, error="holds offsets")


def test_messages_are_printed_by_time_tag_and_newest(run: Run, topic: str) -> None:
    send(run, topic, 4, "--tags", "new")
    send(run, topic, 2, "--tags", "paid")
    assert len(run("message", "print", topic).splitlines()) == 6
    assert len(run("message", "print", topic, "--tags", "paid").splitlines()) == 2
    assert len(run("message", "print", topic, "--newest", 1).splitlines()) == 2
    assert len(run("printMsg", "-t", topic, "--since", "1h").splitlines()) == 6
    run("message", "print", topic, "--until", "1h", code=3)
    assert "message id" in run("message", "print", topic, "--full", "--limit", 1)


def test_a_topic_is_tailed_from_its_newest_messages(run: Run, topic: str) -> None:
    send(run, topic, 4)
    lines = run("message", "tail", topic, "--newest", 1, "--limit", 2, "--json").splitlines()
    assert sorted(json.loads(line)["body"] for line in lines) == ["body-2", "body-3"]


def test_what_is_exported_is_imported_equal(run: Run, topic: str, admin: Admin, tmp_path: Path) -> None:
    from gimbalmq import Message

    admin.messages.send(Message(topic, b"\xff\x00\x01", tags="T", keys=["a", "b"], properties={"p": "v"}))
    admin.messages.send(Message(topic, "文字", sharding_key="s", flag=7))
    file = tmp_path / "all.jsonl"
    assert "2 messages" in run("message", "export", topic, file)
    assert "2 messages" in run("message", "import", file, "--topic", f"{topic}-copy")

    def contents(name: str) -> list[Any]:
        return sorted(
            (view.body, view.tags, view.keys, view.properties, view.sharding_key, view.flag)
            for view in admin.messages.read(name)
        )

    assert contents(f"{topic}-copy") == contents(topic)
    assert len(run("message", "export", topic).splitlines()) == 2
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"topic": "t", "body": "fine"}\n{"no": 1}\n')
    run("message", "import", broken, code=2, error="line 2")
    line = {"topic": f"{topic}-copy", "body": "fine"}
    broken.write_text(f'{{"topic": "t", "bodyError": "damaged"}}\n{json.dumps(line)}\n')
    told = run("message", "import", broken, code=4)
    assert "1 messages are sent. 1 were passed over" in told and "(lines 1)" in told
    run("message", "import", file, "--topic", "no good", code=2, error=r"^gimbalmq: .*\[no good\].*\n$")
    assert len(run("message", "export", "-t", topic, tmp_path / "again").splitlines()) == 1
    assert len((tmp_path / "again").read_text().splitlines()) == 2
    run("message", "import", tmp_path / "absent", code=2, error="absent")


def test_lines_of_standard_input_are_sent(cluster: ThreadCluster, topic: str, admin: Admin) -> None:
    subprocess.run(
        [sys.executable, "-m", "gimbalmq", "message", "send", topic, "-"],
        input="".join(f"{number}\n" for number in range(600)),
        text=True,
        check=True,
        env=environment() | {"NAMESRV_ADDR": cluster.namesrv},
        timeout=60,
        capture_output=True,
    )
    assert sorted(int(view.body) for view in admin.messages.read(topic)) == list(range(600))


def test_a_message_cannot_repaint_the_terminal(run: Run, topic: str, admin: Admin) -> None:
    from gimbalmq import Message

    admin.messages.send(Message(topic, b"\x1b[2J\x1b]0;title\x07evil", tags="T\x1b[31m"))
    for words in (("message", "print", topic), ("message", "print", topic, "--full")):
        printed = run(*words)
        assert "evil" in printed
        assert "\x1b" not in printed
        assert "\x07" not in printed


# -- groups ---------------------------------------------------------------------------


def consume(cluster: ThreadCluster, group: str, topic: str, handler: Any, **options: Any) -> PushConsumer:
    first = ConsumeFromWhere.FIRST_OFFSET
    consumer = PushConsumer(group, cluster.namesrv, consume_from_where=first, persist_interval=0.1, **options)
    consumer.subscribe(topic, "*", handler)
    return consumer


def eventually(ask: Callable[[], str], good: Callable[[str], object]) -> str:
    while not good(found := ask()):
        pass
    return found


def test_a_group_shows_members_progress_and_owners(run: Run, cluster: ThreadCluster, topic: str) -> None:
    """S1-18 S1-19"""
    send(run, topic, 4)
    group = f"billing-{topic}"

    def take(message: MessageView) -> None:
        pass

    with consume(cluster, group, topic, take) as consumer:
        printed = eventually(
            lambda: run("group", "progress", group, "-t", topic),
            lambda text: "lag 0," in text and "#" in text,
        )
        owned = rf"^{topic} +broker-a +[01] +2 +2 +0 +{re.escape(consumer.client_id)}"
        assert len(re.findall(owned, printed, re.MULTILINE)) == 2
        assert consumer.client_id in run("consumerConnection", "-g", group)
        shown = json.loads(run("group", "connections", group, "--json"))
        assert shown["subscriptions"][topic] == "*"
        assert re.search(rf"^{group} +1 +0 ", run("group", "list"), re.MULTILINE)
        assert group in run("topic", "groups", topic)
    send(run, topic, 3)
    run("consumerProgress", "-g", group, "--max-lag", 2, code=4)
    run("consumerProgress", "-g", group, "--max-lag", 3)
    assert "nobody consumes" in run("group", "list")


def test_a_group_that_has_not_committed_yet_is_told_from_one_that_never_will(
    run: Run, cluster: ThreadCluster, topic: str
) -> None:
    send(run, topic, 2)
    group = f"young-{topic}"
    done = threading.Event()
    first = ConsumeFromWhere.FIRST_OFFSET
    consumer = PushConsumer(group, cluster.namesrv, consume_from_where=first, persist_interval=1000.0)
    consumer.subscribe(topic, "*", lambda message: done.set())
    with consumer:
        assert done.wait(30)
        told = run("group", "progress", group)
        assert f"Group {group} has not committed anything yet, though a member is connected" in told
        assert "ask again in a moment" in told
    run("group", "create", f"idle-{topic}")
    assert "never committed an offset, and no member is connected" in run(
        "group", "progress", f"idle-{topic}"
    )


def test_offsets_are_previewed_and_reset(run: Run, cluster: ThreadCluster, topic: str) -> None:
    send(run, topic, 4)
    group = f"reset-{topic}"
    run("group", "create", group, "--retries", 3)
    run("updateSubGroup", "-c", "DefaultCluster", "-g", group, "-q", 2)
    settings = json.loads(run("group", "show", group, "--json"))["broker-a"]
    assert (settings["retryMaxTimes"], settings["retryQueueNums"]) == (3, 2)
    assert re.search(r"^retryMaxTimes +3$", run("group", "show", group), re.MULTILINE)
    printed = run("group", "reset", group, topic, "--to", "latest", "--dry-run")
    assert "nothing was changed" in printed
    run("group", "reset", group, topic, "--to", "latest", code=4)
    run("group", "reset", group, topic, "--to", "latest", "--yes")
    shown = json.loads(run("group", "progress", group, "-t", topic, "--json"))
    assert shown["lag"] == 0
    run("resetOffsetByTime", "-g", group, "-t", topic, "-s", "1h", "--yes")
    assert json.loads(run("group", "progress", group, "-t", topic, "--json"))["lag"] == 4
    run("group", "reset", group, topic, "--to-offset", 1, "--queue", "broker-a/0", "--yes")
    shown = json.loads(run("group", "progress", group, "-t", topic, "--json"))
    assert {item["queueId"]: item["consumerOffset"] for item in shown["queues"]} == {0: 1, 1: 0}
    run("group", "delete", group, code=4)
    run("deleteSubGroup", "-g", group, "--yes")
    run("group", "show", group, code=3)


def test_producers_are_shown(run: Run, cluster: ThreadCluster, topic: str) -> None:
    from gimbalmq import Message
    from gimbalmq.sync import Producer

    with Producer("senders", cluster.namesrv) as producer:
        producer.send(Message(topic, b"x"))
        eventually(
            lambda: run("producerConnection", "-g", "senders", "-t", topic),
            lambda text: producer.client_id in text,
        )


# -- dead letters ---------------------------------------------------------------------


def test_dead_letters_are_listed_shown_and_driven_back(run: Run, cluster: ThreadCluster, topic: str) -> None:
    send(run, topic, 3, "--tags", "T")
    group = f"dead-{topic}"
    healthy: list[bytes] = []
    well = False

    def take(message: MessageView) -> ConsumeResult:
        if not well:
            return ConsumeResult.LATER
        healthy.append(message.body)
        return ConsumeResult.SUCCESS

    with consume(cluster, group, topic, take, max_reconsume_times=0):
        eventually(
            lambda: run("deadletter", "list"), lambda text: re.search(rf"^{group} +3 ", text, re.MULTILINE)
        )
        assert len(run("deadletter", "show", group).splitlines()) == 3
        assert len(run("deadletter", "show", group, "--key", "key-1").splitlines()) == 1
        assert run("deadletter", "redrive", group, "--matching", "body-[12]", "--dry-run").startswith(
            "2 dead letters"
        )
        run("deadletter", "redrive", group, code=4)
        well = True
        assert "2 dead letters went back" in run(
            "deadletter", "redrive", group, "--matching", "body-[12]", "--yes"
        )
        while len(healthy) < 2:
            pass
        assert sorted(healthy) == [b"body-1", b"body-2"]
        run("deadletter", "show", group, "--new", code=3)
