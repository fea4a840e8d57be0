"""Flags and files become configurations; mistakes become one sentence and an exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gimbalmq import __version__
from gimbalmq.cli import main as cli
from gimbalmq.cli.command_line import build_parser
from gimbalmq.cli.serve import ServePlan
from gimbalmq.errors import ConfigError
from tests.cli.commands import environment, gimbalmq


def _plan(*words: object) -> ServePlan:
    args = build_parser(str(words[0])).parse_args([str(word) for word in words])
    return cli._PLANS[args.command](args)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIMBALMQ_HOME", str(tmp_path / "home"))


# -- what a command line means -------------------------------------------------------


def test_server_by_default_serves_this_machine_from_its_home(tmp_path: Path) -> None:
    plan = _plan("server")
    assert plan.broker is not None and plan.nameserver is not None
    assert (plan.nameserver.bind_address, plan.nameserver.listen_port) == ("127.0.0.1", 9876)
    assert (plan.broker.bind_address, plan.broker.listen_port) == ("127.0.0.1", 10911)
    assert plan.broker.store_path_root_dir == str(tmp_path / "home" / "store")
    assert plan.nameserver.kv_config_path == str(tmp_path / "home" / "store" / "namesrv" / "kvConfig.json")


def test_flags_win_over_set_which_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("brokerName=from-file\nlistenPort=1\nbrokerClusterName=file-cluster\n")
    plan = _plan(
        *("broker", "-c", file, "--store", tmp_path / "s", "--port", 20911),
        *("--set", "brokerName=from-set", "--set", "listenPort=2"),
    )
    assert plan.broker is not None
    assert plan.broker.listen_port == 20911
    assert plan.broker.broker_name == "from-set"
    assert plan.broker.broker_cluster_name == "file-cluster"


def test_every_broker_flag_reaches_the_configuration(tmp_path: Path) -> None:
    plan = _plan(
        *("broker", "--port", 1234, "--host", "0.0.0.0", "--advertise", "10.0.0.5", "--namesrv", "a:1;b:2"),
        *(
            "--store",
            tmp_path / "s",
            "--name",
            "bx",
            "--cluster",
            "cx",
            "--sync-flush",
            "--metrics-port",
            9100,
        ),
    )
    config = plan.broker
    assert config is not None
    assert (config.listen_port, config.bind_address) == (1234, "0.0.0.0")
    assert (config.broker_ip1, config.broker_ip2) == ("10.0.0.5", "10.0.0.5")
    assert config.namesrv_addresses == ["a:1", "b:2"]
    assert (config.broker_name, config.broker_cluster_name) == ("bx", "cx")
    assert config.sync_flush and config.metrics_prom_exporter_port == 9100
    assert config.store_path_root_dir == str(tmp_path / "s")


def test_the_roles_of_a_broker_have_flags(tmp_path: Path) -> None:
    slave = _plan("broker", "--slave", 2, "--store", tmp_path).broker
    assert slave is not None and (slave.broker_role, slave.broker_id) == ("SLAVE", 2)
    master = _plan("broker", "--sync-master", "--store", tmp_path).broker
    assert master is not None and (master.broker_role, master.broker_id) == ("SYNC_MASTER", 0)


def test_a_broker_advertises_the_address_it_listens_on(tmp_path: Path) -> None:
    plan = _plan("broker", "--host", "10.1.2.3", "--store", tmp_path / "s")
    assert plan.broker is not None and plan.broker.broker_ip1 == "10.1.2.3"


def test_listening_everywhere_without_an_address_to_tell_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _plan("broker", "--host", "0.0.0.0", "--store", tmp_path / "s")
    assert "--advertise" in caplog.text


def test_server_file_serves_both_and_names_only_keys_unknown_to_both(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "listenPort=20911\nbindAddress=127.0.0.2\nbrokerName=b1\norderMessageEnable=true\n"
        "brokerXyz=1\nnamesrv.listenPort=19876\nnamesrv.nonsense=1\n"
    )
    plan = _plan("server", "-c", file, "--store", tmp_path / "s")
    assert plan.broker is not None and plan.nameserver is not None
    assert (plan.broker.bind_address, plan.broker.listen_port) == ("127.0.0.2", 20911)
    assert (plan.nameserver.bind_address, plan.nameserver.listen_port) == ("127.0.0.2", 19876)
    assert plan.nameserver.order_message_enable
    warned = [record.getMessage() for record in caplog.records]
    assert warned == [
        "brokerXyz is not an option here; passed over",
        "namesrv.nonsense is not an option here; passed over",
    ]


def test_name_server_keeps_its_files_where_told(tmp_path: Path) -> None:
    plan = _plan("namesrv", "--port", 0, "--data", tmp_path / "d")
    assert plan.broker is None and plan.nameserver is not None
    assert plan.nameserver.kv_config_path == str(tmp_path / "d" / "kvConfig.json")
    assert plan.nameserver.config_store_path == str(tmp_path / "d" / "namesrv.properties")


def test_name_server_takes_rocketmqs_tls_keys(tmp_path: Path) -> None:
    plan = _plan("namesrv", "--set", "tls.server.mode=disabled")
    assert plan.nameserver is not None and plan.nameserver.tls_server_mode == "disabled"
    with pytest.raises(ConfigError, match=r"tls\.server\.certPath"):
        _plan("namesrv", "--set", "tls.server.mode=enforcing")
    done = gimbalmq(
        "namesrv", "--set", f"tls.server.certPath={tmp_path / 'none.pem'}", "--data", str(tmp_path)
    )
    assert done.returncode == 2 and "tls.server.certPath=" in done.stderr


def test_broken_values_name_key_value_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="flushDiskType='MAYBE' cannot be used: use ASYNC_FLUSH or SYNC_FLUSH"
    ):
        _plan("broker", "--set", "flushDiskType=MAYBE", "--store", tmp_path / "s")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--store='.*file/sub' cannot be used: Not a directory"):
        _plan("broker", "--store", tmp_path / "file" / "sub")


# -- what a user sees ----------------------------------------------------------------


def test_version_and_help() -> None:
    assert gimbalmq("--version").stdout == f"gimbalmq {__version__}\n"
    done = gimbalmq("--help")
    assert done.returncode == 0
    for word in ("server", "broker", "namesrv", "examples:"):
        assert word in done.stdout
    for command in ("server", "broker", "namesrv"):
        done = gimbalmq(command, "--help")
        assert done.returncode == 0 and "examples:" in done.stdout and "Exit codes" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "COMMAND"),
        (("nonsense",), "nonsense"),
        (("broker", "--prot", "1"), "--prot"),
        (("broker", "--port", "many"), "'many' is not a port; use 0 (any free one) to 65535"),
        (("broker", "--port", "70000"), "'70000' is not a port"),
        (("broker", "--namesrv", "localhost"), "'localhost' is not HOST:PORT"),
        (("broker", "--set", "brokerName"), "'brokerName' is not KEY=VALUE"),
        (
            ("broker", "-c", "/nowhere/broker.conf"),
            "-c='/nowhere/broker.conf' cannot be used: cannot be read: No such",
        ),
        (("namesrv", "--set", "listenPort=x"), "listenPort='x' cannot be used"),
        (("namesrv", "--data", "/dev/null/x"), "--data='/dev/null/x' cannot be used: Not a directory"),
        (("namesrv", "--log-file", "/nowhere/x.log"), "--log-file /nowhere/x.log: No such file"),
    ],
)
def test_misuse_is_exit_code_2_and_a_sentence(words: tuple[str, ...], told: str) -> None:
    done = gimbalmq(*words)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr


def test_a_bare_command_lists_its_commands() -> None:
    done = gimbalmq()
    assert done.returncode == 2 and done.stdout == ""
    assert all(f"\n    {noun}" in done.stderr for noun in ("server", "topic", "group", "dashboard"))
    done = gimbalmq("topic")
    assert done.returncode == 2 and done.stderr.startswith("usage: gimbalmq topic [-h] COMMAND")
    assert "make a topic, or change the one there is" in done.stderr


@pytest.mark.parametrize(
    ("words", "usage", "told"),
    [
        (
            "topic create orders --queue 4",
            "topic create",
            "there is no option --queue; did you mean --queues?",
        ),
        (
            "topic create orders --queue=4",
            "topic create",
            "there is no option --queue; did you mean --queues?",
        ),
        ("group producers senders --topc T", "group producers", "no option --topc; did you mean --topic?"),
        ("server --stor x", "server", "there is no option --stor; did you mean --store?"),
        ("topic list -x", "topic list", "there is no option -x"),
        ("topic list orders", "topic list", "'orders' is one word too many"),
        ("topic lst", "topic", "there is no command lst; did you mean list?"),
        ("topci list", "", "there is no command topci; did you mean topic?"),
        ("topicStats -t orders", "", "there is no command topicStats; did you mean topicStatus?"),
        ("broker list", "broker", "there is no command list; did you mean gimbalmq cluster list?"),
        ("broker status", "broker", "there is no command status; did you mean gimbalmq cluster status?"),
        ("broker promte 127.0.0.1:1", "broker", "there is no command promte; did you mean promote?"),
        ("broker --slav 1", "broker", "there is no option --slav; did you mean --slave?"),
        ("broker --slave 1 --sync-master", "broker", "not allowed with argument --slave"),
        ("broker --slave 0", "broker", "'0' is not the id of a slave; use 1, 2, ..."),
        ("haStatu", "", "there is no command haStatu; did you mean haStatus?"),
        ("cluster local --brokers 0", "cluster local", "'0' cannot be used: write a number, 1 to 26"),
        ("nonsense", "", "there is no command nonsense; there are server, broker,"),
        ("--queues 4 topic list", "", "the option --queues stands before the command"),
        ("-n 127.0.0.1:1", "", "-n 127.0.0.1:1 is followed by no command"),
    ],
)
def test_a_misspelt_word_gets_the_usage_of_its_command_and_the_word_that_was_meant(
    words: str, usage: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(words.split())
    assert stopped.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"usage: {' '.join(('gimbalmq', *usage.split()))} [-h]")
    assert told in shown.err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("-n a:1 topic list", "topic list -n a:1"),
        ("-na:1 topic list", "topic list -na:1"),
        ("--namesrv=a:1 --debug topicList", "topicList --namesrv=a:1 --debug"),
        ("--tls -n a:1 message send orders -- -hi", "message send --tls -n a:1 orders -- -hi"),
        ("--timeout 3 dashboard", "dashboard --timeout 3"),
        ("-n a:1 broker promote x", "broker promote -n a:1 x"),
        ("-n a:1 broker --port 1", "broker -n a:1 --port 1"),
        ("--version", "--version"),
        ("-h", "-h"),
    ],
)
def test_options_of_the_connection_may_stand_before_the_noun(words: str, meant: str) -> None:
    assert cli._command_first(words.split()) == meant.split()


def test_refuses_to_run_without_assertions() -> None:
    done = gimbalmq("--version", flags=("-O",))
    assert done.returncode == 2 and "-O" in done.stderr


def test_help_imports_no_server() -> None:
    script = (
        "import sys\n"
        "from gimbalmq.cli.command_line import build_parser\n"
        "build_parser().format_help()\n"
        "print([m for m in ('asyncio', 'msgspec', 'numpy', 'uvloop', 'ssl', 'email') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment())
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    ("command", "key", "words"),
    [
        ("server", "autoCreateTopicEnabel", "did you mean autoCreateTopicEnable?"),
        ("server", "namesrv.listenPrt", "did you mean namesrv.listenPort?"),
        ("server", "nonsense", "there is no such option here; leave it out"),
        ("broker", "maxMsgSize", "did you mean maxMessageSize?"),
        ("broker", "transientStorePoolSize", "there is no such option here"),
        ("namesrv", "orderMessage", "did you mean orderMessageEnable?"),
    ],
)
def test_an_unknown_key_that_was_typed_is_refused(command: str, key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _plan(command, "--set", f"{key}=false")
    assert f"{key}='false' cannot be used" in str(caught.value) and words in str(caught.value)


@pytest.mark.parametrize("command", ["server", "broker", "namesrv"])
def test_a_misspelt_key_of_a_file_is_refused_and_apaches_own_are_passed_over(
    command: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "some.properties"
    file.write_text("listenPort=0\nserverWorkerThreads=8\nsendMessageThreadPoolNums=16\n")
    _plan(command, "-c", file)
    assert [record.getMessage() for record in caplog.records][:2] == [
        "serverWorkerThreads is not an option here; passed over",
        "sendMessageThreadPoolNums is not an option here; passed over",
    ]
    file.write_text("lisenPort=0\n")
    with pytest.raises(ConfigError, match=r"lisenPort='0' cannot be used: .* did you mean listenPort\?"):
        _plan(command, "-c", file)


@pytest.mark.parametrize(
    "text",
    [
        "[access]\nauthenticationEnabled = true\n",
        '[broker.tls.server]\nmode = "enforcing"\n',
        'initAuthenticationUser = {username = "a", password = "never-shown"}\n',
    ],
)
def test_a_server_does_not_start_open_because_of_a_section(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="before all sections") as caught:
        _plan("broker", "-c", file)
    assert "never-shown" not in str(caught.value)


def test_masters_and_slaves_of_apaches_samples_are_taken(tmp_path: Path) -> None:
    """The keys of conf/2m-2s-async, conf/2m-2s-sync and conf/2m-noslave in Apache's package."""
    file = tmp_path / "broker-a.properties"
    text = (
        "brokerClusterName=DefaultCluster\nbrokerName=broker-a\nbrokerId={id}\ndeleteWhen=04\n"
        "fileReservedTime=48\nbrokerRole={role}\nflushDiskType=ASYNC_FLUSH\n"
    )
    for number, role in ((0, "ASYNC_MASTER"), (0, "SYNC_MASTER"), (1, "SLAVE")):
        file.write_text(text.format(id=number, role=role))
        plan = _plan("server", "-c", file)
        assert plan.broker is not None
        assert (plan.broker.broker_role, plan.broker.broker_id) == (role, number)
    file.write_text(text.format(id=0, role="SLAVE"))
    with pytest.raises(ConfigError, match="brokerId=0 cannot be used: a slave"):
        _plan("broker", "-c", file)
