"""The dashboard as people meet it: a real browser, a real cluster, real consumers."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gimbalmq import ConsumeResult, Message, MessageView
from gimbalmq.sync import Admin, Producer
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from tests.cli.commands import Server, gimbalmq, serving
from tests.dashboard.browsing import IN_A_BROWSER, Open, answer_to, consumer, dashboard, expect
from tests.transport.wiring import self_signed

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = IN_A_BROWSER

EVIL = "<img src=x onerror=alert(1)>"
PASSWORD = "correct horse"
PATHS = {
    "/": "broker-b",
    "/topics": "orders",
    "/topic/orders": "broker-b/3",
    "/groups": "billing",
    "/group/billing": "@worker-2",
    "/messages?topic=orders": "order 7",
    "/dead-letters": "Last",
    "/dead-letters/billing": "No dead letters.",
    "/preview?group=billing": "STICKY",
}
"""Every page, and what it shows when its table is there."""


# -- what the tests stand on -----------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadCluster]:
    """Two members of the group billing read the eight queues of orders."""
    with LocalCluster.in_thread(brokers=2) as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.topics.create("orders", queues=4)
        with Producer("shop", cluster.namesrv) as producer:
            for number in range(20):
                producer.send(Message("orders", f"order {number}", tags="new", keys=f"key-{number}"))
        with ExitStack() as members:
            for name in ("worker-1", "worker-2"):
                members.enter_context(consumer(cluster, "billing", "orders", instance_name=name))
            yield cluster


@pytest.fixture(scope="module")
def url(cluster: ThreadCluster) -> Iterator[str]:
    with dashboard(cluster.namesrv) as url:
        yield url


@pytest.fixture(scope="module")
def guarded_url(cluster: ThreadCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Read-only and behind a password."""
    file = tmp_path_factory.mktemp("secret") / "password"
    file.write_text(f"{PASSWORD}\n")
    with dashboard(cluster.namesrv, "--password-file", file, "--read-only") as url:
        yield url


def owners(page: Page) -> Any:
    return page.get_by_role("table").filter(has=page.get_by_text("Consumer offset"))


def expect_picture(page: Page, names: list[str], full: int) -> None:
    """Names over the columns of the ownership picture, and how many cells are full; both follow the table."""
    page.wait_for_function(
        """([names, full]) => {
            const plot = getElement(document.querySelector('.nicegui-echart')).chart.getOption();
            const cells = plot.series[0].data.filter(cell => cell.value[2] === 1);
            return plot.xAxis[0].data.join() === names.join() && cells.length === full;
        }""",
        arg=[names, full],
    )


# -- looking ---------------------------------------------------------------------------


def test_cluster_topics_and_groups_are_shown(url: str, open_page: Open, cluster: ThreadCluster) -> None:
    page = open_page(url)
    expect(page).to_have_title("Cluster · GimbalMQ")
    for broker in ("broker-a", "broker-b"):
        expect(page.get_by_role("cell", name=broker, exact=True)).to_be_visible()
    page.get_by_role("link", name="Topics").click()
    page.get_by_role("link", name="orders").click()
    expect(page.get_by_text("20 messages in 8 queues")).to_be_visible()
    expect(page.get_by_role("cell", name="broker-b/3")).to_be_visible()
    page.get_by_role("link", name="billing").click()
    expect(page.get_by_role("heading", name="Group billing")).to_be_visible()
    page.get_by_role("link", name="Groups").click()
    expect(page.get_by_role("row", name=re.compile("billing.*CLUSTERING.*orders"))).to_be_visible()
    page.get_by_role("link", name="Topics").click()
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    page.get_by_label("Filter topics").fill("nothing like it")
    expect(page.get_by_role("link", name="orders")).to_be_hidden()
    page.get_by_label("Filter topics").fill("")
    page.get_by_role("switch", name="Retry, dead-letter").click()
    expect(page.get_by_role("link", name="%RETRY%billing")).to_be_visible()


def test_a_pair_that_enforces_tls_is_shown_with_roles_and_lag(open_page: Open, tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    keys = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": certificate.cert_path,
        "tls.server.keyPath": certificate.key_path,
    }
    with (
        LocalCluster.in_thread(replicas=2, properties=keys) as guarded,
        dashboard(guarded.namesrv, "--tls-ca", certificate.cert_path) as url,
    ):
        page = open_page(url)
        expect(page.get_by_role("row", name=re.compile("broker-a.*master.*1 of 1 in sync"))).to_be_visible()
        expect(page.get_by_role("row", name=re.compile("broker-a.*slave.*following 0 B"))).to_be_visible()
        guarded.kill_broker(("broker-a", 0))
        expect(page.get_by_text(re.compile("broker-a, slave 1 at .* does not copy"))).to_be_visible()
        page.close()


def test_a_rebalance_is_seen_within_two_seconds_with_reason_and_pause(
    url: str, open_page: Open, cluster: ThreadCluster
) -> None:
    page = open_page(f"{url}/group/billing")
    expect(page.get_by_text("2 members", exact=True)).to_be_visible()
    expect(owners(page).get_by_text("@worker-2")).to_have_count(4)
    newcomer = owners(page).get_by_text("@newcomer")
    took = []
    for _ in range(3):  # a busy machine may be late; a dashboard that is slow by itself is always late
        with consumer(cluster, "billing", "orders", instance_name="newcomer"):
            began = time.monotonic()
            newcomer.first.wait_for()
            took.append(time.monotonic() - began)
            expect(newcomer).not_to_have_count(0)
            expect_picture(page, ["newcomer", "worker-1", "worker-2"], 8)
        expect(newcomer).to_have_count(0)
        expect(page.get_by_text("2 members", exact=True)).to_be_visible()
        if took[-1] < 2:
            break
    assert min(took) < 2, took
    expect(owners(page).get_by_text("@worker-2")).to_have_count(4)
    expect_picture(page, ["worker-1", "worker-2"], 8)
    joined = page.get_by_role("row", name=re.compile(r"\+ \S*@newcomer")).last
    expect(joined).to_contain_text("members changed")
    expect(joined).to_contain_text(re.compile(r"\d+ ms"))
    expect(joined).to_contain_text(re.compile(r"worker-\d → newcomer"))
    expect(page.get_by_role("row", name=re.compile(r"− \S*@newcomer")).first).to_be_visible()


def test_lag_and_rates_are_drawn_for_each_queue(url: str, open_page: Open, cluster: ThreadCluster) -> None:
    page = open_page(f"{url}/group/billing")
    expect(page.get_by_text("2 members", exact=True)).to_be_visible()
    page.wait_for_function(
        """() => [1, 2].every(number => {
            const plot = getElement(document.querySelectorAll('.nicegui-echart')[number]).chart.getOption();
            return plot.series.length >= 9 && plot.series.every(line => line.data.length > 1);
        })"""
    )


def test_messages_are_found_by_key_id_place_and_time(
    url: str, open_page: Open, cluster: ThreadCluster
) -> None:
    with Admin(cluster.namesrv) as admin:
        (wanted,) = admin.messages.by_key("orders", "key-7")
    page = open_page(f"{url}/messages?topic=orders")
    expect(page.get_by_text("20 found")).to_be_visible()
    place = f"{wanted.broker_name}/{wanted.queue_id} {wanted.queue_offset}"
    for by, value in (
        ("Key", "key-7"),
        ("Message id", wanted.msg_id),
        ("Message id", wanted.offset_msg_id),
        ("Queue and offset", place),
    ):
        page.get_by_label("By").click()
        page.get_by_role("option", name=by, exact=True).click()
        page.get_by_label("Value").fill(value)
        page.get_by_label("Value").press("Enter")
        expect(page.get_by_text("1 found")).to_be_visible()
        expect(page.get_by_role("cell", name="order 7")).to_be_visible()
        page.get_by_label("Value").fill("")
    page.get_by_label("Value").fill("nonsense")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("write it like broker-a/3 100")).to_be_visible()
    page.get_by_label("By").click()
    page.get_by_role("option", name="Stored since").click()
    page.get_by_label("Value").fill("1d")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("20 found")).to_be_visible()


def test_a_change_is_previewed_under_every_strategy(url: str, open_page: Open) -> None:
    page = open_page(f"{url}/preview?group=billing")
    expect(page.get_by_text("0 of 8 held queues would move")).to_be_visible()
    page.get_by_label("Join").fill("third")
    page.get_by_label("Join").press("Enter")
    expect(page.get_by_role("cell", name="third").first).to_be_visible()
    expect(page.get_by_text("The members use")).to_be_hidden()
    for name in ("AVG_BY_CIRCLE", "CONSISTENT_HASH", "STICKY", "MACHINE_ROOM_NEARBY-AVG"):
        page.get_by_label("Strategy").click()
        page.get_by_role("option", name=name, exact=True).click()
        if name.startswith("MACHINE_ROOM"):
            expect(page.get_by_text("no room fits this name")).to_be_visible()
            page.get_by_label("Rooms").fill("broker=r1, third=r1, 1=r1, f=r1, 2=r1")
            page.get_by_label("Rooms").press("Enter")
            expect(page.get_by_text("no room fits this name")).to_be_hidden()
        expect(page.get_by_text("The members use AVG: some queues move because")).to_be_visible()
        moved = page.get_by_role("row", name=re.compile(f"^{name} ")).get_by_role("cell").nth(1).inner_text()
        expect(page.get_by_text(f"{moved} of 8 held queues would move")).to_be_visible()
        expect(page.get_by_label("Queues that would move").get_by_role("row")).to_have_count(1 + int(moved))
    page.get_by_label("Leave").click()
    for worker in ("worker-1", "worker-2"):
        page.get_by_role("option", name=worker).click()
    page.keyboard.press("Escape")
    page.get_by_label("Join").fill("")
    page.get_by_label("Join").press("Enter")
    expect(page.get_by_text("0 of 8 held queues would move")).to_be_visible()
    expect(page.get_by_text("8 queues would be held by nobody")).to_be_visible()


# -- doing -----------------------------------------------------------------------------


def test_dead_letters_are_shown_and_driven_back(url: str, open_page: Open, cluster: ThreadCluster) -> None:
    healthy: list[bytes] = []
    well = False

    def take(message: MessageView) -> ConsumeResult:
        if not well:
            return ConsumeResult.LATER
        healthy.append(message.body)
        return ConsumeResult.SUCCESS

    with Producer("shop", cluster.namesrv) as producer:
        for number in range(3):
            producer.send(Message("refunds", f"refund {number}"))
    with consumer(cluster, "refunders", "refunds", take, max_reconsume_times=0):
        page = open_page(f"{url}/dead-letters")
        page.get_by_role("link", name="refunders").click()
        expect(page.get_by_text("3 dead letters")).to_be_visible()
        expect(page.get_by_role("cell", name="refund 2")).to_be_visible()
        well = True
        page.get_by_role("button", name="Redrive…").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("dialog")).to_be_hidden()
        page.get_by_role("button", name="Redrive…").click()
        page.get_by_role("dialog").get_by_role("button", name="Redrive", exact=True).click()
        expect(page.get_by_text("3 dead letters went back.")).to_be_visible()
        expect(page.get_by_text("No dead letters.")).to_be_visible()
        page.get_by_role("switch", name="Only those never driven back").click()
        expect(page.get_by_role("cell", name="refund 2")).to_be_visible()
        while len(healthy) < 3:  # the test's time limit ends it
            page.wait_for_timeout(20)
        assert sorted(healthy) == [b"refund 0", b"refund 1", b"refund 2"]


def test_read_only_refuses_on_the_page_and_behind_it(
    guarded_url: str, open_page: Open, cluster: ThreadCluster
) -> None:
    page = open_page(f"{guarded_url}/dead-letters/billing")
    log_in(page)
    expect(page.get_by_text("This dashboard is read-only.")).to_be_visible()
    expect(page.get_by_role("button", name="Redrive…")).to_be_disabled()
    expect(page.get_by_role("banner").get_by_text("read-only")).to_be_visible()
    # The click that the page does not offer, sent by hand.
    page.evaluate(
        """() => {
            const [id, button] = Object.entries(mounted_app.elements).find(
                ([_, element]) => element.props.label === 'Redrive');
            const listener = button.events.find(event => event.type === 'click').listener_id;
            window.socket.emit('event', {id: Number(id), client_id: window.clientId, listener_id: listener, args: []});
        }"""
    )
    expect(page.get_by_text("start it without --read-only to change things")).to_be_visible()


# -- who may look ----------------------------------------------------------------------


def log_in(page: Page, password: str = PASSWORD) -> None:
    """By the keyboard: the password has the focus."""
    expect(page.get_by_label("Password")).to_be_focused()
    page.keyboard.type(password)
    page.keyboard.press("Enter")


def test_nobody_sees_anything_before_the_login(guarded_url: str, open_page: Open) -> None:
    page = open_page(f"{guarded_url}/messages?topic=orders")
    expect(page).to_have_title("Log in · GimbalMQ")
    log_in(page, "wrong")
    expect(page.get_by_text("Wrong name or secret.")).to_be_visible()
    log_in(page)
    expect(page.get_by_text("20 found")).to_be_visible()  # the page that was asked for, query and all
    other = page.context.new_page()
    other.goto(guarded_url)
    expect(other).to_have_title("Cluster · GimbalMQ")
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_title("Log in · GimbalMQ")
    expect(other).to_have_title("Log in · GimbalMQ")
    page.goto(f"{guarded_url}/topics")
    expect(page).to_have_title("Log in · GimbalMQ")


@pytest.mark.parametrize(
    "then", ["https://example.org/", "//example.org", "/\\example.org", "javascript:alert(1)"]
)
def test_a_login_leads_nowhere_else(guarded_url: str, then: str) -> None:
    body = urllib.parse.urlencode({"user": "admin", "password": PASSWORD, "then": then}).encode()
    assert answer_to(f"{guarded_url}/login", body)[1]["location"] == "/"


def test_a_login_that_never_ends_is_cut_off(guarded_url: str) -> None:
    assert answer_to(f"{guarded_url}/login", b"user=admin&password=" + b"x" * 20_000)[0] == 413


def test_pages_may_not_be_framed_nor_load_from_elsewhere(url: str, guarded_url: str) -> None:
    for address in (url, f"{guarded_url}/login"):
        status, headers = answer_to(address)
        assert status == 200
        assert headers["x-frame-options"] == "DENY"
        assert "default-src 'self'" in headers["content-security-policy"]
    status, headers = answer_to(f"{guarded_url}/group/billing")
    assert (status, headers["location"]) == (303, "/login?then=/group/billing")


def test_without_a_password_a_foreign_name_is_refused(url: str) -> None:
    """A site whose name leads to 127.0.0.1 could read the page through the viewer's browser."""
    request = urllib.request.Request(url, headers={"Host": "evil.example.org"})
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(request, timeout=60)


# -- however one looks -----------------------------------------------------------------


def test_no_name_or_message_becomes_markup(url: str, open_page: Open, cluster: ThreadCluster) -> None:
    with Producer("shop", cluster.namesrv) as producer:
        producer.send(
            Message(
                "hostile",
                f"{EVIL} body",
                tags="<b>tag</b>",
                keys=EVIL.replace(" ", "/"),
                properties={EVIL: EVIL},
            )
        )
    with consumer(cluster, "victims", "hostile", instance_name=EVIL):
        page = open_page(f"{url}/group/victims")
        expect(owners(page).get_by_text(EVIL).first).to_be_visible()
        for plot in page.get_by_role("img").all()[:3]:
            plot.hover()  # a tooltip is made of names too
        not_marked_up(page)
        page.goto(f"{url}/messages?topic=hostile")
        expect(page.get_by_role("cell", name="<b>tag</b>")).to_be_visible()
        page.get_by_role("table").get_by_role("button").click()
        expect(page.get_by_role("dialog").get_by_text(f"{EVIL} body")).to_be_visible()
        expect(page.get_by_role("dialog").get_by_text(f"Property {EVIL}")).to_be_visible()
        not_marked_up(page)
        page.goto(f"{url}/preview?group=victims")
        page.get_by_label("Leave").click()
        expect(page.get_by_role("option", name=EVIL)).to_be_visible()
        page.keyboard.press("Escape")
        page.get_by_label("Join").fill(EVIL)
        page.get_by_label("Join").press("Enter")
        expect(page.get_by_text("would move;")).to_be_visible()
        not_marked_up(page)
        page.goto(f"{url}/group/{urllib.parse.quote(EVIL)}")
        expect(page.get_by_role("heading", name=EVIL)).to_be_visible()
        expect(page).to_have_title(f"Group {EVIL} · GimbalMQ")
        not_marked_up(page)


def not_marked_up(page: Page) -> None:
    assert page.locator("img[src=x]").count() == 0
    assert page.locator("td b, dd b").count() == 0


def test_pages_fit_a_phone(url: str, open_page: Open) -> None:
    page = open_page(url, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    for path, shown in PATHS.items():
        page.goto(url + path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_text(shown).first).to_be_attached()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    expect(page.get_by_role("link", name="Topics")).not_to_be_in_viewport()
    page.get_by_role("button", name="Navigation").tap()
    page.get_by_role("link", name="Topics").tap()
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()


def test_light_and_dark_follow_the_system_and_the_viewer(url: str, open_page: Open) -> None:
    page = open_page(f"{url}/group/billing", color_scheme="dark")
    expect(page.locator("body")).to_have_class(re.compile("body--dark"))
    expect(page.get_by_text("2 members", exact=True)).to_be_visible()
    page.get_by_role("button", name="Light or dark").click()
    expect(page.locator("body")).to_have_class(re.compile("body--light"))
    page.wait_for_function(
        """() => getElement(document.querySelector('.nicegui-echart')).chart.getOption()
            .xAxis[0].axisLabel.color === '#47525d'"""
    )
    page.reload()
    expect(page.locator("body")).to_have_class(re.compile("body--light"))


def test_everything_is_reached_by_the_keyboard(url: str, open_page: Open) -> None:
    page = open_page(url)
    expect(page.get_by_role("cell", name="broker-a")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    reached = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "document.activeElement.getAttribute('aria-label') || document.activeElement.innerText"
            )
        )
    for wanted in ("Navigation", "Light or dark"):
        assert wanted in reached
    for text in ("Topics", "Groups", "Messages", "Dead letters", "Balance preview"):
        assert any(text in (name or "") for name in reached), (text, reached)
    page.goto(f"{url}/messages?topic=orders")
    first = page.get_by_role("table").get_by_role("button").first
    first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_text("Offset id")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(first).to_be_focused()


# -- when things go wrong --------------------------------------------------------------


def test_a_cluster_that_is_away_is_told_and_comes_back(open_page: Open, tmp_path: Path) -> None:
    def cluster(port: int) -> AbstractContextManager[Server]:
        return serving(
            "server",
            "--namesrv-port",
            port,
            "--port",
            0,
            "--store",
            tmp_path / "store",
            home=tmp_path,
        )

    with LocalCluster.in_thread() as borrowed:  # a port that is free once it is closed
        port = int(borrowed.namesrv.rpartition(":")[2])
    with dashboard(f"127.0.0.1:{port}", "--timeout", 2) as url:
        page = open_page(url)
        expect(page.get_by_role("alert")).to_contain_text(str(port))
        group = open_page(f"{url}/group/anything")
        expect(group.get_by_role("alert").first).to_contain_text(str(port))
        with cluster(port) as server:
            server.ready()
            expect(page.get_by_role("cell", name="DefaultCluster")).to_be_visible()
            expect(page.get_by_role("alert")).to_have_count(0)
            expect(group.get_by_text("nobody consumes")).to_be_visible()
        expect(page.get_by_role("alert")).to_contain_text(str(port))
        expect(page.get_by_role("cell", name="DefaultCluster")).to_be_visible()  # what was known stays
        page.close()
        group.close()


def test_the_command_refuses_what_would_be_open_to_all(tmp_path: Path, url: str) -> None:
    open_to_all = gimbalmq("dashboard", "--host", "0.0.0.0", "--port", 0)
    assert open_to_all.returncode == 2
    assert "--password-file" in open_to_all.stderr
    empty = tmp_path / "empty"
    empty.touch()
    assert "it is empty" in gimbalmq("dashboard", "--password-file", empty).stderr
    port = url.rpartition(":")[2]
    taken = gimbalmq("dashboard", "--port", port)
    assert taken.returncode == 1
    assert "choose another --port" in taken.stderr
