"""Options of authentication and authorisation: Apache's words, and refusals that show no secret."""

from __future__ import annotations

import pytest

from gimbalmq.access.config import AccessConfig
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.errors import ConfigError
from gimbalmq.nameserver.config import NameServerConfig

SECRET = "hush-hush"


def read(**keys: str) -> AccessConfig:
    config, unknown = BrokerConfig.from_properties(keys)
    assert not unknown
    return config


def test_apaches_file_is_read_as_it_is() -> None:
    keys = {
        "authenticationEnabled": "true",
        "authenticationProvider": "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": "org.apache.rocketmq.auth.authentication.provider.Local",
        "authenticationStrategy": "stateful",
        "initAuthenticationUser": f'{{"username":"root","password":"{SECRET}"}}',
        "innerClientAuthenticationCredentials": f'{{"accessKey":"inner","secretKey":"{SECRET}"}}',
        "authenticationWhitelist": "105, 34",
        "authorizationEnabled": "true",
        "authorizationProvider": "x",
        "authorizationMetadataProvider": "x",
        "authorizationStrategy": "stateless",
        "authorizationWhitelist": "11",
    }
    for kind in (BrokerConfig, NameServerConfig):
        config, unknown = kind.from_properties(keys)
        assert not unknown
        first, inner = config.first_user(), config.inner_credentials()
        assert first is not None and (first.name, first.secret) == ("root", SECRET)
        assert inner is not None and (inner.name, inner.secret) == ("inner", SECRET)
        assert config.unsigned_codes() == {105, 34} and config.unchecked_codes() == {11}
        assert SECRET not in repr(config) and SECRET not in str(config.to_properties())
        assert SECRET not in repr(first)
        assert config.authenticates and config.authorizes


def test_by_default_nobody_is_asked_and_no_users_are_kept() -> None:
    config = AccessConfig()
    assert not (config.authenticates or config.authorizes or config.keeps_users)
    assert AccessConfig(authentication_metadata_provider="Local").keeps_users
    plain = AccessConfig(acl_enable=True)
    assert plain.authenticates and plain.authorizes and plain.keeps_users


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"authenticationWhitelist": "105;34"}, "authenticationWhitelist='105;34'"),
        ({"authorizationWhitelist": "SendMessage"}, "authorizationWhitelist='SendMessage'"),
        ({"authorizationRules": "lax"}, "authorizationRules='lax'"),
        ({"accessMode": "off"}, "use enforcing or permissive"),
        ({"authorizationEnabled": "true"}, "set authenticationEnabled=true"),
        ({"trustedServers": "10.0.0.0/8;broker-1"}, "'broker-1' is neither an address nor a range"),
        ({"trustedServers": "CN="}, "trustedServers='CN='"),
        ({"trustedServers": "10.0.0.300"}, "10.0.0.300"),
        ({"auditLogFormat": "xml"}, "use text or json"),
        ({"initAuthenticationUser": SECRET}, 'use {"username":"...","password":"..."}'),
        (
            {"initAuthenticationUser": f'{{"username":"root","passwort":"{SECRET}"}}'},
            "initAuthenticationUser='...'",
        ),
        (
            {"initAuthenticationUser": f'{{"username":"","password":"{SECRET}"}}'},
            "initAuthenticationUser='...'",
        ),
        (
            {"initAuthenticationUser": f'{{"username":"{SECRET}","password":" "}}'},
            "initAuthenticationUser='...'",
        ),
        ({"innerClientAuthenticationCredentials": f'["{SECRET}"]'}, '"accessKey":"...","secretKey":"..."'),
    ],
)
def test_a_wrong_value_is_refused_by_its_key_and_shows_no_secret(keys: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**keys)
    assert named in str(caught.value)
    assert SECRET not in str(caught.value)


def test_apaches_rule_allows_policies_without_signatures() -> None:
    assert read(authorizationEnabled="true", authorizationRules="Apache").authorizes


def test_nothing_of_it_changes_at_run_time() -> None:
    config, _ = BrokerConfig.from_properties({"authenticationEnabled": "true"})
    for key, text in {
        "authenticationEnabled": "false",
        "accessMode": "permissive",
        "authenticationWhitelist": "310",
        "initAuthenticationUser": f'{{"username":"root","password":"{SECRET}"}}',
        "trustedServers": "0.0.0.0/0",
        "auditLogPath": "/tmp/elsewhere",
        "authFailureDelayMillis": "0",
    }.items():
        with pytest.raises(ConfigError, match="when the server starts") as caught:
            config.changed({key: text})
        assert SECRET not in str(caught.value)
