"""Something to buy, so that a new stack can be tried at once."""

from deploy.local.errors import StackError
from deploy.local.stack import LocalStack

PRODUCT_ID = 1001
NAME = "Flash sale ticket"
TOTAL = 10_000
SHARDS = 6


async def load_demo_product(stack: LocalStack) -> None:
    """Put the demo product on sale, unless the stack's folder brought it from an earlier run."""
    if await _is_known(stack):
        return
    await _product(
        stack, "put", str(PRODUCT_ID), "--name", NAME,
        "--total", str(TOTAL), "--shards", str(SHARDS), "--buffer-percent", "0",
    )  # fmt: skip
    await _product(stack, "load", str(PRODUCT_ID))


async def _is_known(stack: LocalStack) -> bool:
    try:
        await _product(stack, "show", str(PRODUCT_ID))
    except StackError:
        return False
    return True


async def _product(stack: LocalStack, command: str, *arguments: str) -> None:
    target = ("--target", stack.grpc_address())
    await stack.run_python(
        f"product-{command}", "-m", "inventory.cli", *target, "product", command, *arguments
    )
