"""The dashboard of a cluster that has users: one logs in as one of them, over HTTPS, and sees what they may see."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from gimbalmq import Message
from gimbalmq.sync import Admin, Producer
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from tests.cli.commands import environment, gimbalmq
from tests.dashboard.browsing import IN_A_BROWSER, Open, answer_to, consumer, dashboard, expect
from tests.dashboard.guarded import PROPERTIES, SECRETS, keys, make_users
from tests.support import run
from tests.transport.wiring import Certificate, self_signed

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = IN_A_BROWSER


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadCluster]:
    """A worker of billing reads orders; the group's dead letters have a topic."""
    with LocalCluster.in_thread(properties=PROPERTIES, namesrv_properties=PROPERTIES) as cluster:
        (broker,) = cluster.brokers
        run(make_users(cluster.namesrv, (cluster.namesrv, broker.address)))
        with Admin(cluster.namesrv, **keys("root")) as admin:
            admin.topics.create("orders", queues=4)
            admin.topics.create("salaries", queues=1)
        with Producer("shop", cluster.namesrv, **keys("root")) as producer:
            producer.send(Message("orders", "order 1", keys="key-1"))
            producer.send(Message("salaries", "9000 a month"))
        with ExitStack() as members:
            members.enter_context(
                consumer(cluster, "billing", "orders", instance_name="worker-1", **keys("root"))
            )
            yield cluster


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("https"), "dashboard")


@pytest.fixture(scope="module")
def url(cluster: ThreadCluster, certificate: Certificate) -> Iterator[str]:
    """Found out by itself to need users. A proxy may stand in front, so tests of limits come from where they like."""
    words = (
        "--https-cert",
        certificate.cert_path,
        "--https-key",
        certificate.key_path,
        "--proxy",
        "127.0.0.1",
    )
    with dashboard(cluster.namesrv, *words) as url:
        yield url


def log_in(page: Page, user: str, secret: str | None = None) -> None:
    expect(page.get_by_label("Name")).to_be_focused()
    page.keyboard.type(user)
    page.keyboard.press("Tab")
    page.keyboard.type(secret or SECRETS[user])
    page.keyboard.press("Enter")


def form(user: str, secret: str) -> bytes:
    return urllib.parse.urlencode({"user": user, "password": secret, "then": "/topics"}).encode()


def test_each_user_sees_what_they_may_see_and_nothing_of_others(
    url: str, open_page: Open, cluster: ThreadCluster
) -> None:
    page = open_page(f"{url}/group/billing", ignore_https_errors=True)
    expect(page).to_have_title("Log in · GimbalMQ")
    log_in(page, "alice")
    expect(page.get_by_text("1 member", exact=True)).to_be_visible()
    expect(page.get_by_text("@worker-1").first).to_be_visible()
    expect(page.get_by_role("banner").get_by_text("alice")).to_be_visible()
    # While alice looks, eve must not get to see what alice was told.
    other = open_page(f"{url}/group/billing", ignore_https_errors=True)
    log_in(other, "eve")
    expect(other.get_by_role("alert").first).to_contain_text(
        "not allowed for eve: User:eve has no permission to access Group:billing"
    )
    for path, told in (
        ("/", "not allowed for eve"),
        ("/groups", "not allowed for eve"),
        ("/topic/orders", "not allowed for eve: User:eve has no permission to access Topic:orders"),
        ("/dead-letters/billing", "No dead letters."),
    ):
        other.goto(url + path)
        expect(other.get_by_text(told).first).to_be_visible()
    expect(other.get_by_text("worker-1")).to_have_count(0)
    page.goto(f"{url}/messages?topic=orders")
    expect(page.get_by_role("cell", name="order 1")).to_be_visible()
    page.goto(f"{url}/messages?topic=salaries")
    expect(page.get_by_text("not allowed for alice").first).to_be_visible()
    expect(page.get_by_text("9000 a month")).to_have_count(0)
    page.goto(url)
    expect(page.get_by_role("cell", name="broker-a", exact=True)).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("not allowed for alice")
    page.goto(f"{url}/groups")
    page.get_by_label("A group by its name").fill("billing")
    page.get_by_label("A group by its name").press("Enter")
    expect(page.get_by_text("1 member", exact=True)).to_be_visible()


def test_super_users_may_act_and_others_may_not(url: str, open_page: Open) -> None:
    page = open_page(f"{url}/dead-letters/billing", ignore_https_errors=True)
    log_in(page, "alice")
    expect(page.get_by_text("alice may look only")).to_be_visible()
    expect(page.get_by_role("button", name="Redrive…")).to_be_disabled()
    # The click that the page does not offer, sent by hand.
    page.evaluate(
        """() => {
            const [id, button] = Object.entries(mounted_app.elements).find(
                ([_, element]) => element.props.label === 'Redrive');
            const listener = button.events.find(event => event.type === 'click').listener_id;
            window.socket.emit('event', {id: Number(id), client_id: window.clientId, listener_id: listener, args: []});
        }"""
    )
    expect(page.get_by_text("alice may look only")).to_have_count(2)
    page.get_by_role("button", name="Log out").click()
    log_in(page, "root")
    expect(page).to_have_title("Cluster · GimbalMQ")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.goto(f"{url}/dead-letters/billing")
    expect(page.get_by_role("button", name="Redrive…")).to_be_enabled()
    page.goto(f"{url}/groups")
    expect(page.get_by_role("row", name=re.compile("billing.*CLUSTERING.*orders"))).to_be_visible()


def test_the_cookie_is_for_https_and_out_of_reach_of_scripts(url: str, certificate: Certificate) -> None:
    status, headers = answer_to(f"{url}/login", form("alice", SECRETS["alice"]), ca=certificate.cert_path)
    assert (status, headers["location"]) == (303, "/topics")
    cookie = headers["set-cookie"]
    assert cookie.startswith("__Host-gimbalmq-session=")
    assert {"httponly", "samesite=lax", "secure", "path=/"} <= {
        part.strip().lower() for part in cookie.split(";")
    }
    assert "Max-Age=43200" in cookie
    assert SECRETS["alice"] not in cookie
    own = {"Cookie": cookie.partition(";")[0]}
    assert answer_to(f"{url}/topics", headers=own, ca=certificate.cert_path)[0] == 200
    assert answer_to(f"{url}/logout", b"", headers=own, ca=certificate.cert_path)[0] == 303
    status, headers = answer_to(f"{url}/topics", headers=own, ca=certificate.cert_path)
    assert (status, headers["location"]) == (303, "/login?then=/topics"), (
        "the session is gone, whoever has its cookie"
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example.org"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_forms_of_other_sites_are_refused(
    url: str, certificate: Certificate, headers: dict[str, str]
) -> None:
    body = form("alice", SECRETS["alice"])
    assert answer_to(f"{url}/login", body, headers=headers, ca=certificate.cert_path)[0] == 403
    own = {"Origin": url, "Sec-Fetch-Site": "same-origin"}
    assert answer_to(f"{url}/login", body, headers=own, ca=certificate.cert_path)[0] == 303


def test_guessing_is_slowed_down_and_tells_nothing(url: str, certificate: Certificate) -> None:
    def try_to(user: str, secret: str, address: str) -> str:
        headers = {"X-Forwarded-For": address}
        status, found = answer_to(
            f"{url}/login", form(user, secret), headers=headers, ca=certificate.cert_path
        )
        assert status == 303
        return found["location"]

    wrong = "/login?why=wrong&then=%2Ftopics"
    assert try_to("eve", "wrong", "192.0.2.1") == wrong
    assert try_to("no-such-user", "wrong", "192.0.2.1") == wrong
    assert try_to("ghost", SECRETS["ghost"], "192.0.2.1") == wrong
    for _ in range(2):
        assert try_to("eve", "wrong", "192.0.2.1") == wrong
    assert re.fullmatch(r"/login\?wait=[12]&then=%2Ftopics", try_to("root", SECRETS["root"], "192.0.2.1"))
    assert try_to("eve", SECRETS["eve"], "192.0.2.2") == "/topics", "others are not kept out"


def test_the_command_says_whom_it_lets_in(cluster: ThreadCluster, certificate: Certificate) -> None:
    open_to_all = gimbalmq("dashboard", "--host", "0.0.0.0", "--port", 0, "--namesrv", cluster.namesrv)
    assert open_to_all.returncode == 2
    assert "secrets would cross the network in the clear; give --https-cert" in open_to_all.stderr
    assert "--https-cert" in gimbalmq("dashboard", "--https-key", certificate.key_path).stderr
    assert "use an IP address" in gimbalmq("dashboard", "--proxy", "front").stderr
    # With keys at hand the login is not left out: nobody else may use them.
    words = (sys.executable, "-m", "gimbalmq", "dashboard", "--host", "0.0.0.0", "--namesrv", "127.0.0.1:1")
    given = {"ROCKETMQ_ACCESS_KEY": "root", "ROCKETMQ_SECRET_KEY": SECRETS["root"]}
    refused = subprocess.run(
        words, capture_output=True, text=True, timeout=60, env={**environment(), **given}
    )
    assert refused.returncode == 2 and "--https-cert" in refused.stderr
    assert SECRETS["root"] not in refused.stderr + refused.stdout
