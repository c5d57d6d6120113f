"""`inventoryctl doctor`: is everything well, and where not, what to do."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from inventory.cli.exits import Exit
from inventory.cli.output import console, print_json, sentence_of
from inventory.cli.session import Session, ended, session_of
from inventory.client import (
    Cluster,
    InventoryClient,
    InventoryError,
    NodeFlaw,
    Partition,
    Product,
    ProductStatus,
)

DISTRIBUTION = "inventory-client"
PAGE, PAGES_MAX = 1_000, 20
MYSQL = "mysql"
"""The mode of a service that has no live stock beside its ledger, and so no partitions."""

_REMEDIES = {
    "FENCED": "a worker reopens them after a failover; see that one is running and reaches MySQL",
    "RESTORING": "a worker gives them what the ledger knows; if it lasts, its log says why",
    "NO_HEAD": "a worker opens them; see that one is running and reaches MySQL",
    "UNREACHABLE": "see that their Redis node is running or that its replica was promoted",
}
_REMEDY = "see that the Redis nodes and a worker are running; the worker's log names the partition"


_MODES = {
    "buffer": (
        "no Redis node can be reached: the buffer is sold from the ledger",
        "start the Redis nodes; the service returns to them by itself",
    ),
    "leaving": (
        "Redis is back and is told what was sold meanwhile: nothing is sold for a moment",
        "if it lasts for more than some seconds, see that a worker runs and reaches MySQL and Redis",
    ),
}


_STOPPING = frozenset(("replicas", "node"))
"""What of a node keeps its partitions from selling."""

_MARKS = {
    (True, False): ("ok", "green"),
    (True, True): ("unwise", "yellow"),
    (False, False): ("NOT OK", "bold red"),
    (False, True): ("NOT OK", "bold red"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `remedy` is empty where it is well. One that is ok and has a remedy
    is unwise."""

    check: str
    ok: bool
    detail: str
    remedy: str = ""


def doctor(
    context: typer.Context,
    backlog_max: Annotated[
        int, typer.Option(min=0, help="Events per partition that may wait for the ledger.")
    ] = 10_000,
) -> None:
    """Check that the service is reachable, serving, open and keeping up; exit code 1 if not."""
    session = session_of(context)
    findings = list(examine(session, backlog_max=backlog_max))
    healthy = all(finding.ok for finding in findings)
    if session.as_json:
        print_json({"target": session.target, "healthy": healthy, "findings": findings})
    else:
        _print(findings)
    ended(Exit.OK if healthy else Exit.REFUSED)


def examine(session: Session, *, backlog_max: int) -> Iterator[Finding]:
    """Looks at one thing after the other, and ends where the next needs what is missing."""
    try:
        with session.client() as client:
            yield Finding("reachable", True, session.target)
            yield _serving(client)
            yield from _of_cluster(client.get_cluster(), backlog_max=backlog_max)
            yield _letters(client)
            yield _frozen(client)
    except InventoryError as error:
        yield Finding("answers", False, sentence_of(error), _advice(error))


def _serving(client: InventoryClient) -> Finding:
    if client.is_serving():
        return Finding("serving", True, "health is SERVING")
    remedy = "the server waits for Redis or MySQL, or is stopping; its log says which"
    return Finding("serving", False, "health is NOT_SERVING", remedy)


def _of_cluster(cluster: Cluster, *, backlog_max: int) -> Iterator[Finding]:
    yield Finding("version", True, f"service {cluster.version or '?'}, client {_own_version()}")
    yield _mode(cluster)
    if cluster.mode == MYSQL:
        yield Finding("partitions", True, "none: units are sold from MySQL")
    else:
        yield from _openness(cluster.partitions)
        yield _replicas(cluster.partitions)
        yield from _nodes(cluster)
        yield _backlog(cluster.partitions, backlog_max=backlog_max)
    yield _schema(cluster.schema_version)


def _mode(cluster: Cluster) -> Finding:
    mode = cluster.mode or "redis"  # a server of an earlier version does not say
    detail = f"{mode}, epoch {cluster.mode_epoch}"
    if mode not in _MODES:
        return Finding("mode", True, detail)
    said, remedy = _MODES[mode]
    return Finding("mode", False, f"{detail}: {said}", remedy)


def _openness(partitions: tuple[Partition, ...]) -> Iterator[Finding]:
    closed: defaultdict[str, list[int]] = defaultdict(list)
    for partition in partitions:
        if not partition.open:
            closed[partition.reason or "UNKNOWN"].append(partition.partition)
    for reason, numbers in sorted(closed.items()):
        named = ", ".join(map(str, numbers))
        remedy = _REMEDIES.get(reason, _REMEDY)
        yield Finding("partitions", False, f"closed, {reason}: {named}", remedy)
    if not partitions:
        yield Finding("partitions", False, "the service knows of none", _REMEDY)
    elif not closed:
        yield Finding("partitions", True, f"all {len(partitions)} are open")


def _replicas(partitions: tuple[Partition, ...]) -> Finding:
    alone = [each.partition for each in partitions if each.degraded]
    if not alone:
        return Finding("replicas", True, "no partition is degraded")
    named = ", ".join(map(str, alone))
    return Finding(
        "replicas",
        False,
        f"degraded, sold without a replica: {named}",
        "start the replica of their node, a worker then ends it; until then losing the node loses sales",
    )


def _nodes(cluster: Cluster) -> Iterator[Finding]:
    """A server of an earlier version says nothing of its nodes."""
    for flaw in cluster.node_flaws:
        is_well = not flaw.loses_units and flaw.what not in _STOPPING
        yield Finding("nodes", is_well, _worded(flaw, cluster.partitions), flaw.remedy)
    if cluster.durability and not cluster.node_flaws:
        yield Finding("nodes", True, f"all are set up for {cluster.durability}")


def _worded(flaw: NodeFlaw, partitions: tuple[Partition, ...]) -> str:
    """With the partitions that it stops: those that are degraded sell without a replica."""
    detail = f"{flaw.node}: {flaw.what} is {flaw.value}: {flaw.reason}"
    stopped = [
        str(each.partition)
        for each in partitions
        if each.node == flaw.node and not each.degraded and flaw.what in _STOPPING
    ]
    return f"{detail}; nothing is sold in {', '.join(stopped)}" if stopped else detail


def _backlog(partitions: tuple[Partition, ...], *, backlog_max: int) -> Finding:
    waiting = sum(partition.backlog for partition in partitions)
    behind = [each.partition for each in partitions if each.backlog > backlog_max]
    detail = f"{waiting} events wait for the ledger"
    if not behind:
        return Finding("backlog", True, detail)
    named = ", ".join(map(str, behind))
    remedy = "see that a worker is running and MySQL answers; sales stop when the limit is reached"
    return Finding("backlog", False, f"{detail}; above {backlog_max} in {named}", remedy)


def _schema(schema_version: int) -> Finding:
    if schema_version:
        return Finding("schema", True, f"version {schema_version}")
    return Finding("schema", False, "the ledger has no tables", "run `inventoryctl migrate`")


def _letters(client: InventoryClient) -> Finding:
    """Events that the ledger lacks: until somebody deals with them their products cannot be loaded."""
    letters = client.list_dead_letters(page_size=1).letters
    if not letters:
        return Finding("dead letters", True, "none is open")
    (oldest,) = letters
    detail = f"open since {oldest.id}: {oldest.reason}"
    remedy = "`inventoryctl deadletter list`, then retry or discard each"
    return Finding("dead letters", False, detail, remedy)


def _frozen(client: InventoryClient) -> Finding:
    frozen = [each for each in _on_sale(client) if each.frozen]
    if not frozen:
        return Finding("products", True, "none on sale is frozen")
    first = frozen[0]
    detail = f"{len(frozen)} frozen, the first is {first.product_id}: {first.frozen_reason}"
    remedy = (
        f"`inventoryctl audit {first.product_id}`, repair what it finds, then `product unfreeze`"
    )
    return Finding("products", False, detail, remedy)


def _on_sale(client: InventoryClient) -> Iterator[Product]:
    """Of the first products; there may be very many."""
    after = 0
    for _ in range(PAGES_MAX):
        page = client.list_products(after_product_id=after, page_size=PAGE)
        yield from (each for each in page.products if each.status is ProductStatus.OPEN)
        after = page.next_after_product_id
        if not after:
            return


def _advice(error: InventoryError) -> str:
    if error.code == "INTERNAL":
        return "see the server's log; client and server may be of different versions"
    return "see that the server is running and that this is its address"


def _own_version() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "not installed"


def _print(findings: list[Finding]) -> None:
    table = Table("", "check", "finding", "what to do", box=box.SIMPLE_HEAD)
    for finding in findings:
        mark, style = _MARKS[finding.ok, bool(finding.remedy)]
        table.add_row(mark, finding.check, finding.detail, finding.remedy, style=style)
    console().print(table)
