"""The settings of a cluster that asks who is there; tests.guarded_fixtures starts one."""

from __future__ import annotations

import json
from collections.abc import Callable

from gimbalmq.testing.cluster import ThreadCluster

Run = Callable[..., str]

SECRET = "root-secret"
KEYS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": "root", "password": SECRET}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": "inner", "secretKey": "inner-secret"}),
}


def servers(cluster: ThreadCluster) -> list[str]:
    """All that keep users."""
    return [*(broker.address for broker in cluster.brokers), cluster.namesrv]
