"""What a person reads when the stack is up."""

from pathlib import Path

from deploy.local.demo_product import PRODUCT_ID
from deploy.local.stack import LocalStack


def greeting(stack: LocalStack, prometheus: Path) -> str:
    places = {
        "gRPC": stack.grpc_address() if stack.servers else "(not started)",
        "metrics": " ".join(stack.endpoints()["metrics"]) or "(nothing started)",
        "Redis": " ".join(stack.redis_nodes) or "(none: units are sold from MySQL)",
        "MySQL": " ".join(stack.mysql_urls),
        "logs": str(stack.directory / "logs"),
        "processes": _pids(stack),
    }
    lines = ["", "The inventory service runs. Ctrl-C stops it.", ""]
    lines += [f"  {name:<11} {place}" for name, place in places.items()]
    if stack.servers:
        lines += ["", "Try, in another shell:", ""]
        lines += [f"  {command}" for command in _commands(stack)]
        lines += ["", "A Prometheus for all metrics ports:", "", f"  {_prometheus(prometheus)}"]
    return "\n".join([*lines, ""])


def _pids(stack: LocalStack) -> str:
    stores = [*(node.process for node in stack.redis), *(each.process for each in stack.databases)]
    started = [*stores, *stack.servers.values(), *stack.workers.values()]
    return ", ".join(f"{process.name} {process.pid}" for process in started)


def _commands(stack: LocalStack) -> list[str]:
    call = ".venv/bin/inventoryctl"
    return [
        f"export INVENTORY_TARGET={stack.grpc_address()}",
        f"{call} deduct {PRODUCT_ID} 2 --request-id my-first-order",
        f"{call} stock {PRODUCT_ID}",
        f"{call} product show {PRODUCT_ID}",
    ]


def _prometheus(config: Path) -> str:
    return (
        f"prometheus --config.file={config} --storage.tsdb.path={config.parent / 'data'} "
        "--web.listen-address=127.0.0.1:9090"
    )
