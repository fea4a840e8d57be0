"""Which module holds which command, so that only the one asked for is imported.

A server keeps for life what its command line imported, and a person waits for it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module

NOUNS = {
    "cluster": ("clusters", "clusters and their brokers: list, status, writable, local"),
    "broker": ("replicas", "a broker; or replicas: ha-status, promote, rejoin, sync-state, epochs, elect"),
    "controller": ("replicas", "Apache's controllers: show, config, set, clean"),
    "config": ("clusters", "settings of running brokers and name servers: get, set"),
    "topic": ("topics", "topics: list, route, stats, create, resize, delete"),
    "group": ("groups", "consumer groups: list, connections, progress, reset offsets"),
    "message": ("messages", "messages: send, find, tail, print, export, import"),
    "deadletter": ("dead_letters", "dead letters: list, show, redrive"),
    "user": ("users", "users: create, update, delete, show, list, copy"),
    "acl": ("acls", "what users may do: allow, deny, delete, show, list, copy, import"),
    "balance": ("balance", "preview and simulate who owns which queue"),
    "pipeline": ("pipeline", "Spark pipelines: list, init, run, compact"),
    "cert": ("cert", "a private authority and certificates for TLS, in a folder"),
    "dashboard": ("dashboard", "the cluster in a browser, live"),
    "completion": ("completion", "print a shell's completion script"),
}

MQADMIN = {
    "addWritePerm": "cluster",
    "allocateMQ": "balance",
    "brokerStatus": "cluster",
    "cleanBrokerMetadata": "controller",
    "clusterList": "cluster",
    "consumerConnection": "group",
    "consumerProgress": "group",
    "copyAcl": "acl",
    "copyUser": "user",
    "createAcl": "acl",
    "createUser": "user",
    "deleteAcl": "acl",
    "deleteSubGroup": "group",
    "deleteTopic": "topic",
    "deleteUser": "user",
    "electMaster": "broker",
    "getAcl": "acl",
    "getBrokerConfig": "config",
    "getBrokerEpoch": "broker",
    "getControllerConfig": "controller",
    "getControllerMetaData": "controller",
    "getSyncStateSet": "broker",
    "getUser": "user",
    "haStatus": "broker",
    "listAcl": "acl",
    "listUser": "user",
    "printMsg": "message",
    "producerConnection": "group",
    "queryMsgById": "message",
    "queryMsgByKey": "message",
    "queryMsgByOffset": "message",
    "queryMsgByUniqueKey": "message",
    "resetMasterFlushOffset": "broker",
    "resetOffsetByTime": "group",
    "sendMessage": "message",
    "topicList": "topic",
    "topicRoute": "topic",
    "topicStatus": "topic",
    "updateAcl": "acl",
    "updateBrokerConfig": "config",
    "updateControllerConfig": "controller",
    "updateSubGroup": "group",
    "updateTopic": "topic",
    "updateUser": "user",
    "wipeWritePerm": "cluster",
}
"""mqadmin's commands, which work as they are written for it."""


def home_of(chosen: str | None) -> str | None:
    """The module of a noun, or of one of mqadmin's names; None for other commands."""
    noun = MQADMIN.get(chosen or "", chosen)
    return NOUNS[noun][0] if noun in NOUNS else None


def runs_a_broker(words: Sequence[str]) -> bool:
    """Whether ``gimbalmq broker ...`` is to run one. That takes options only: a word behind it is a verb."""
    return words[0] == "broker" and (len(words) == 1 or words[1][:1] in ("-", ""))


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser], chosen: str | None) -> None:
    """All nouns by name; the verbs only of the one chosen, itself or by one of mqadmin's names.

    A noun that is there already stays what it is: a broker is run by the name of one.
    """
    home = home_of(chosen)
    for name, (module, about) in NOUNS.items():
        if module != home and name not in commands.choices:
            commands.add_parser(name, help=about, add_help=False)
    if home is not None:
        import_module(f"gimbalmq.cli.{home}").add_commands(commands)
