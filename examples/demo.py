"""GimbalMQ in a minute or two: a server, a producer, consumers that come and go, and Spark at the end.

    make demo                      or          python examples/demo.py
    make demo ARGS=--secure        or          python examples/demo.py --secure

Starts ``gimbalmq server`` on free ports in a temporary folder. First, consumers in processes of their own join
and are killed, and a picture shows who owns which queue (demo_experiments.py). Then a steady stream of orders
is sent to a topic of eight queues, and two consumers of one group share them. Watch the lines that
begin with ``queues``: they show who reads which queue before and after each change. When every order
is accounted for, a Spark pipeline sums them up, and draws a page of what balancing did meanwhile.
Without Spark (``pip install 'gimbalmq[spark]'``) the demo ends before that, and says so. At a terminal, server
and dashboard stay up until you press Enter.

With ``--secure`` the server asks everybody for keys and speaks nothing but TLS. All parts find the client file that it
has made by the environment variable GIMBALMQ_CLIENT_FILE: clients, commands, dashboard and Spark.

The group uses the STICKY strategy, which balances all of a group's queues together, its retry queue
included, and moves as few as it can.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from gimbalmq import Admin, ConsumeFromWhere, Message, MessageView, Producer, PushConsumer, Recorder

TOPIC, GROUP, QUEUES, ORDERS = "orders", "billing", 8, 400
COUNTRIES = ("NL", "FR", "JP", "BR", "KE")
VARIABLE = "GIMBALMQ_CLIENT_FILE"
PAGE = Path(tempfile.gettempdir()) / "gimbalmq-demo-report.html"

SUMMED_UP = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, from_json, round, sum

spark = SparkSession.active()


@dp.materialized_view
def revenue():
    orders = spark.read.format("rocketmq").option("namesrv", "NAMESRV").load("orders")
    order = from_json(col("body").cast("string"), "country STRING, amount DOUBLE")
    by_country = orders.select(order.alias("order")).groupBy("order.country")
    return by_country.agg(count("*").alias("orders"), round(sum("order.amount"), 2).alias("revenue"))
"""


class Demo:
    def __init__(self, namesrv: str, records: Path) -> None:
        self.namesrv = namesrv
        self.records = records
        self.recorders: dict[str, Recorder] = {}
        self.received: Counter[str] = Counter()
        self.by_member: Counter[str] = Counter()
        self.members: dict[str, PushConsumer] = {}
        self.begun = asyncio.get_running_loop().time()

    def say(self, text: str) -> None:
        print(f"{asyncio.get_running_loop().time() - self.begun:5.1f} s  {text}", flush=True)

    def show_queues(self) -> None:
        shares = []
        for name, consumer in self.members.items():
            held = dict(consumer.assignment)
            numbers = [str(queue.queue_id) for queue in sorted(held.pop(TOPIC, []))]
            numbers += ["retry"] if any(held.values()) else []
            shares.append(f"{name} {' '.join(numbers) or '-'}")
        self.say(f"queues   {'   |   '.join(shares) or 'nobody'}")

    async def join(self, name: str) -> None:
        self.say(f"{name} joins the group {GROUP}")
        consumer = PushConsumer(
            GROUP,
            self.namesrv,
            client_file=os.environ.get(VARIABLE),
            instance_name=name,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            strategy="STICKY",
            handover="lease",
        )

        async def handle(message: MessageView) -> None:
            self.received[message.keys[0]] += 1
            self.by_member[name] += 1

        consumer.subscribe(TOPIC, "*", handle)
        self.recorders[name] = Recorder(consumer, self.records / f"{name}.jsonl", every=0.25)
        self.recorders[name].start()
        await consumer.start()
        self.members[name] = consumer

    async def leave(self, name: str) -> None:
        self.say(f"{name} leaves")
        await self.recorders[name].look()
        await self.members.pop(name).close()
        await self.recorders.pop(name).close()

    def shared_out(self) -> bool:
        """Every queue has a reader, and members hold equally many (the group's retry queue counts too)."""
        held = [consumer.assignment for consumer in self.members.values()]
        counts = [sum(map(len, queues.values())) for queues in held]
        return sum(len(queues.get(TOPIC, [])) for queues in held) == QUEUES and max(counts) - min(counts) <= 1

    async def until(self, true: Callable[[], bool], what: str, seconds: float = 15.0) -> None:
        for _ in range(int(seconds / 0.05)):
            if true():
                return
            await asyncio.sleep(0.05)
        raise SystemExit(f"demo: {what} did not happen within {seconds:g} s")


def order(number: int) -> Message:
    told = {"order": number, "country": COUNTRIES[number % 13 % 5], "amount": 5 + number * 7 % 200 / 4}
    return Message(TOPIC, json.dumps(told).encode(), tags="new", keys=f"order-{number}")


async def run(namesrv: str, records: Path) -> None:
    demo = Demo(namesrv, records)
    async with Admin(namesrv, client_file=os.environ.get(VARIABLE)) as admin:
        await admin.topics.create(TOPIC, queues=QUEUES)
    demo.say(f"topic {TOPIC} with {QUEUES} queues")

    async def produce() -> None:
        async with Producer("shop", namesrv, client_file=os.environ.get(VARIABLE)) as producer:
            first = await producer.send(order(0))
            demo.say(f"first order sent: queue {first.queue.queue_id}, id {first.msg_id}")
            for number in range(1, ORDERS):
                await producer.send(order(number))
                await asyncio.sleep(0.02)
        demo.say(f"all {ORDERS} orders are sent")

    producing = asyncio.ensure_future(produce())
    await demo.join("anna")
    await demo.until(demo.shared_out, "sharing the queues out")
    demo.show_queues()
    await asyncio.sleep(1.5)

    await demo.join("ben")
    await demo.until(demo.shared_out, "sharing the queues out")
    demo.show_queues()
    await asyncio.sleep(1.5)

    await demo.leave("anna")
    await demo.until(demo.shared_out, "taking over the queues")
    demo.show_queues()

    await producing
    await demo.until(lambda: len(demo.received) == ORDERS, "receiving every order")
    await demo.leave("ben")
    twice = sum(count - 1 for count in demo.received.values())
    shares = ", ".join(f"{name} {count}" for name, count in sorted(demo.by_member.items()))
    demo.say(f"received {len(demo.received)} of {ORDERS} orders ({shares}); {twice} of them twice")


async def sum_up(namesrv: str, folder: Path) -> int:
    """One pipeline: the balance report that ships with GimbalMQ, and a table of our own added to it."""
    if find_spec("pyspark") is None:
        print(
            "Spark is not installed, so this is all; with it (pip install 'gimbalmq[spark]') the orders are summed"
        )
        return 0
    project = folder / "report"
    places = ("--set", f"records={folder / 'records'}", "--set", f"page={PAGE}")
    if await gimbalmq("pipeline", "init", "balance-report", str(project), *places):
        return 1
    (project / "transformations" / "revenue.py").write_text(SUMMED_UP.replace("NAMESRV", namesrv))
    # What runs for seconds is not worth the time of Java's better compiler.
    quick = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"
    if await gimbalmq("pipeline", "run", str(project), "--conf", quick):
        return 1
    from pyarrow import parquet

    rows = [
        row
        for file in (project / "tables" / "revenue").glob("*.parquet")
        for row in parquet.read_table(file).to_pylist()
    ]
    print("\ncountry  orders    revenue")
    for row in sorted(rows, key=lambda row: -row["revenue"]):
        print(f"{row['country']:<7} {row['orders']:>7} {row['revenue']:>10,.2f}")
    total = sum(row["orders"] for row in rows)
    print(f"{'all':<7} {total:>7} {sum(row['revenue'] for row in rows):>10,.2f}\n")
    print(f"what balancing did meanwhile: {PAGE.as_uri()}")
    return 0 if total == ORDERS else 1


async def gimbalmq(*words: str) -> int:
    print(f"$ gimbalmq {' '.join(words)}", flush=True)
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "gimbalmq", *words)
    return await process.wait()


async def start(*words: str) -> asyncio.subprocess.Process:
    print(f"$ gimbalmq {' '.join(words)}", flush=True)
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gimbalmq", *words, stdout=asyncio.subprocess.PIPE
    )


async def end(process: asyncio.subprocess.Process | None) -> int:
    if process is None:
        return 0
    if process.returncode is None:
        process.terminate()
    return await process.wait()


async def start_dashboard(namesrv: str) -> tuple[asyncio.subprocess.Process | None, str]:
    """The page in a browser, where its packages are installed; its address, or why there is none."""
    if find_spec("nicegui") is None:
        return None, "not started: pip install 'gimbalmq[dashboard]'"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return await start("dashboard", "--namesrv", namesrv, "--port", str(port)), f"http://127.0.0.1:{port}"


def settle_environment(client_file: Path | None) -> None:
    """The demo has a cluster of its own: what the shell says of another one does not count for it."""
    for variable in [name for name in os.environ if name == VARIABLE or name.startswith("ROCKETMQ_")]:
        del os.environ[variable]
    if client_file is not None:
        os.environ[VARIABLE] = str(client_file)


async def main(*, secure: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="gimbalmq-demo-") as name:
        folder = Path(name)
        store = str(folder / "store")
        secured = folder / "secured"
        settle_environment(secured / "client.toml" if secure else None)
        server = await start(
            *("server", "--namesrv-port", "0", "--port", "0", "--store", store, "--log-level", "warning"),
            *(("--secure", str(secured)) if secure else ()),
        )
        assert server.stdout is not None
        dashboard = None
        try:
            addresses = []
            for _ in range(2):
                line = (await asyncio.wait_for(server.stdout.readline(), 30)).decode().rstrip()
                print(line, flush=True)
                found = re.search(r"ready on (\S+?:\d+)", line)
                if found is None:
                    raise SystemExit("demo: the server did not start")
                addresses.append(found.group(1))
            namesrv, broker = addresses
            if secure:
                print(f"keys and TLS are asked for; {os.environ[VARIABLE]} lets the parts of the demo in")
            dashboard, page = await start_dashboard(namesrv)
            experiments = Path(__file__).with_name("demo_experiments.py")
            process = await asyncio.create_subprocess_exec(
                sys.executable, str(experiments), "--namesrv", namesrv
            )
            if await process.wait():
                raise SystemExit("demo: the experiments failed")
            await run(namesrv, folder / "records")
            failed = await sum_up(namesrv, folder)
            print(f"name server {namesrv}\nbroker      {broker}\ndashboard   {page}", flush=True)
            if sys.stdin.isatty() and sys.stdout.isatty():
                await asyncio.to_thread(input, "Press Enter to end. ")
        finally:
            await end(dashboard)
            code = await end(server)
    print(f"server ended with code {code}; its folder is removed", flush=True)
    return code or failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--secure", action="store_true", help="with users, policies and TLS")
    try:
        sys.exit(asyncio.run(main(secure=parser.parse_args().secure)))
    except KeyboardInterrupt:  # everything was ended on the way out
        sys.exit(130)
