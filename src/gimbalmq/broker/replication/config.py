"""What a broker can be told about its replicas, under RocketMQ's own names."""

from __future__ import annotations

from dataclasses import dataclass

from gimbalmq._options import JAVA_INT, Configuration, option
from gimbalmq.access.sources import check_sources
from gimbalmq.errors import ConfigError, InvalidParameterError

ASYNC_MASTER, SYNC_MASTER, SLAVE = "ASYNC_MASTER", "SYNC_MASTER", "SLAVE"
MASTER_ID = 0

_LONG = (1 << 63) - 1
_DAY_MS = 86_400_000
_PACKET_ROOM = 36
"""Largest header of a packet; it must fit with its data into the 4 MiB that an Apache slave reads into."""


@dataclass(frozen=True, kw_only=True)
class ReplicationOptions(Configuration):
    """The part of a broker's options that is about replicas; defaults are Apache's unless the meaning says "ours"."""

    broker_role: str = option(
        ASYNC_MASTER,
        "`ASYNC_MASTER`; `SYNC_MASTER`, which answers a send when slaves have it; `SLAVE`, which copies a master. "
        "With `enableControllerMode` the controller decides",
        choices=(ASYNC_MASTER, SYNC_MASTER, SLAVE),
    )
    broker_id: int = option(
        0, "0 for a master, 1, 2 ... for its slaves; not used with a controller", between=(-1, _LONG)
    )

    # The stream of the log.
    ha_listen_port: int = option(
        0, "port that slaves copy the log from; 0 takes `listenPort` + 1", between=(0, 65535), fixed=True
    )
    ha_master_address: str = option(
        "", "`host:port` that a slave copies the log from; empty: what the name servers say", fixed=True
    )
    ha_allowed_addresses: tuple[str, ...] = option(
        (),
        "ours: addresses and ranges, `10.0.0.2;10.1.0.0/16`, that may copy the log, for the stream knows no passwords; "
        "empty: every address, but with authentication on, or with TLS required, only this machine, unless slaves show "
        "certificates (`haTlsEnable`)",
        fixed=True,
    )
    ha_tls_enable: bool = option(
        False,
        "ours: the log is copied by TLS, with the certificates of the ordinary port, at all replicas or at none; with "
        "`tls.server.need.client.auth=require` a slave must show one. Apache's brokers cannot",
        fixed=True,
    )
    ha_cut_tail_from: int = option(
        -1,
        "ours: a slave whose log has parted from its master's cuts its own there, if that is at this offset or "
        "behind it; -1 cuts nothing. What is cut off is lost. After the cut it is -1 again",
        between=(-1, _LONG),
    )
    ha_send_heartbeat_interval: int = option(
        5_000,
        "ms without data after which either side of that stream says that it is there",
        between=(1, _DAY_MS),
    )
    ha_housekeeping_interval: int = option(
        20_000, "ms of silence after which either side ends the connection", between=(2, _DAY_MS)
    )
    ha_transfer_batch_size: int = option(
        32_768, "most bytes of the log in one packet", between=(1, (4 << 20) - _PACKET_ROOM)
    )
    ha_max_gap_not_in_sync: int = option(
        256 * 1024 * 1024,
        "bytes behind the master from which on a slave does not count as in sync; "
        "4.9 calls it `haSlaveFallbehindMax`",
        between=(1, _LONG),
        also=("haSlaveFallbehindMax",),
    )
    ha_flow_control_enable: bool = option(False, "keep the stream to each slave below the next rate")
    max_ha_transfer_byte_in_second: int = option(
        100 * 1024 * 1024, "bytes a second to each slave with `haFlowControlEnable`", between=(1, _LONG)
    )

    # What an answer waits for.
    replica_rule: str = option(
        "safe",
        "ours: when a `SYNC_MASTER` answers: `safe` waits for `inSyncReplicas` - 1 slaves, one at least; "
        "`4.9` and `5.x` do what Apache's brokers of these versions do",
        choices=("safe", "4.9", "5.x"),
    )
    slave_timeout: int = option(3_000, "ms a send waits for slaves with `SYNC_MASTER`", between=(1, 600_000))
    in_sync_replicas: int = option(
        1, "replicas, with the master, that must have a message before it is answered", between=(1, 1_000)
    )
    min_in_sync_replicas: int = option(
        1,
        "a `SYNC_MASTER` refuses sends if fewer replicas, with the master, are in sync; with `replicaRule=5.x` only if "
        "there is a controller or `enableSlaveActingMaster`, with `4.9` never",
        between=(1, 1_000),
    )
    total_replicas: int = option(
        1,
        "how many replicas there are, for Apache's brokers; here it is only checked that it is not less than "
        "`inSyncReplicas`, if it is more than 1",
        between=(1, 1_000),
    )
    enable_auto_in_sync_replicas: bool = option(
        False,
        "with `enableSlaveActingMaster`: wait for fewer replicas if fewer are in sync; else fewer than "
        "`inSyncReplicas` refuse sends",
    )
    all_ack_in_sync_state_set: bool = option(
        False, "with a controller: a message is answered and shown when every replica of the set has it"
    )

    # Reading.
    slave_read_enable: bool = option(
        False, "readers that are far behind are sent to a slave; a slave that is asked answers in any case"
    )
    offset_check_in_slave: bool = option(False, "a slave, too, corrects offsets that are out of range")
    access_message_in_memory_max_ratio: int = option(
        40,
        "percent of this machine's memory; what lies further behind the end of the log counts as not in memory",
        between=(0, 100),
        fixed=True,
    )

    # A slave that stands in for its master.
    enable_slave_acting_master: bool = option(
        False, "the slave with the smallest id stands in for a dead master, read only", fixed=True
    )
    enable_remote_escape: bool = option(
        False,
        "with that: delayed messages that fall due meanwhile, and open transactions, go to other brokers",
    )
    skip_pre_online: bool = option(
        False, "with that: serve at once after the start, without asking the other replicas", fixed=True
    )
    compatible_with_old_name_srv: bool = option(
        True, "with that: heartbeats and members by requests that name servers of 4.x know"
    )
    broker_heartbeat_interval: int = option(1_000, "ms between heartbeats", between=(50, _DAY_MS))
    send_heartbeat_timeout_millis: int = option(1_000, "ms a heartbeat may take", between=(1, _DAY_MS))
    broker_not_active_timeout_millis: int = option(
        10_000, "ms without a heartbeat after which this broker counts as gone", between=(100, _DAY_MS)
    )
    sync_broker_member_group_period: int = option(
        1_000, "ms between looks for the other replicas", between=(50, _DAY_MS)
    )

    # A controller that elects the master.
    enable_controller_mode: bool = option(False, "Apache's controller says who is the master", fixed=True)
    controller_addr: str = option("", "the controllers, `host:port;host:port`", fixed=True)
    ha_lead_in_doubt: bool = option(
        False,
        "ours, with a controller: a broker that comes back from a power cut, and may have lost what others have, does "
        "not wait for replicas that do not answer before it becomes the master. What only they have is lost then",
    )
    sync_broker_metadata_period: int = option(
        5_000, "ms between questions to the controller who the master is", between=(50, _DAY_MS)
    )
    check_sync_state_set_period: int = option(
        5_000, "ms between looks which replicas are in sync", between=(50, _DAY_MS)
    )
    sync_controller_metadata_period: int = option(
        10_000, "ms between questions which controller leads", between=(50, _DAY_MS)
    )
    controller_heart_beat_timeout_mills: int = option(
        10_000,
        "ms without a heartbeat after which the controller takes this broker for dead",
        between=(100, _DAY_MS),
    )
    broker_election_priority: int = option(
        JAVA_INT, "in an election the smaller one is preferred", between=(0, JAVA_INT)
    )
    ha_max_time_slave_not_catchup: int = option(
        15_000, "ms behind the master after which a slave leaves the set", between=(1, _DAY_MS)
    )
    sync_from_last_file: bool = option(
        False, "an empty slave begins at the master's last file, not at its first", fixed=True
    )
    async_learner: bool = option(False, "a slave that never joins the set", fixed=True)
    store_path_epoch_file: str = option(
        "", "file of epochs; empty: `epochFileCheckpoint` in the store's folder", fixed=True
    )
    store_path_broker_identity: str = option(
        "", "file of the id that the controller gave; empty: `brokerIdentity` in that folder", fixed=True
    )

    def check(self) -> None:
        super().check()
        if not self.enable_controller_mode:
            self._check_role()
        elif not self.controller_addresses:
            raise ConfigError(
                "controllerAddr",
                self.controller_addr,
                "enableControllerMode needs the controllers, host:port;host:port",
            )
        for key, addresses in (
            ("haMasterAddress", [self.ha_master_address] if self.ha_master_address else []),
            ("controllerAddr", self.controller_addresses),
        ):
            for address in addresses:
                host, _, port = address.rpartition(":")
                if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                    raise ConfigError(key, address, "use host:port, like 10.0.0.1:10912")
        try:
            check_sources(self.ha_allowed_addresses)
        except InvalidParameterError:
            raise ConfigError(
                "haAllowedAddresses",
                ";".join(self.ha_allowed_addresses),
                "use addresses and ranges, like 10.0.0.2;10.1.0.0/16",
            ) from None
        if self.ha_housekeeping_interval <= self.ha_send_heartbeat_interval:
            raise ConfigError(
                "haHousekeepingInterval",
                self.ha_housekeeping_interval,
                "connections would end between two heartbeats: use more than "
                f"haSendHeartbeatInterval={self.ha_send_heartbeat_interval}",
            )
        if self.min_in_sync_replicas > self.in_sync_replicas:
            raise ConfigError(
                "minInSyncReplicas",
                self.min_in_sync_replicas,
                f"use at most inSyncReplicas={self.in_sync_replicas}, or raise that",
            )
        if 1 < self.total_replicas < self.in_sync_replicas:
            raise ConfigError(
                "totalReplicas",
                self.total_replicas,
                f"inSyncReplicas={self.in_sync_replicas} of them could never have a message: raise it, or lower that",
            )
        if self.enable_controller_mode and self.replica_rule == "4.9":
            raise ConfigError(
                "replicaRule",
                "4.9",
                "brokers of 4.9 know no controller, and minInSyncReplicas would not count: use safe or 5.x",
            )
        if self.enable_remote_escape and not self.enable_slave_acting_master:
            raise ConfigError("enableRemoteEscape", True, "it needs enableSlaveActingMaster=true")
        if self.enable_controller_mode and self.enable_slave_acting_master:
            raise ConfigError(
                "enableSlaveActingMaster",
                True,
                "with enableControllerMode=true another master is elected, and nobody stands in for one: leave one of "
                "the two out",
            )

    def _check_role(self) -> None:
        if self.broker_role == SLAVE and self.broker_id <= MASTER_ID:
            raise ConfigError(
                "brokerId", self.broker_id, "a slave (brokerRole=SLAVE) has an id of its own: use 1, 2 ..."
            )
        if self.broker_role != SLAVE and self.broker_id != MASTER_ID:
            raise ConfigError(
                "brokerId",
                self.broker_id,
                f"a master (brokerRole={self.broker_role}) has the id 0; for a slave add brokerRole=SLAVE",
            )

    @property
    def controller_addresses(self) -> list[str]:
        return [address.strip() for address in self.controller_addr.split(";") if address.strip()]
