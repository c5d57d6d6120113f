"""The server's methods are the contract's."""

import re

import pytest
from google.protobuf.descriptor import ServiceDescriptor

from server.admin import AdminService
from server.events import EventService
from server.holds import HoldService
from server.journal import JournalService
from server.listener import ADMIN, INVENTORY
from server.orders import OrderService
from server.service import InventoryService

OF_CALLERS = (InventoryService, OrderService, EventService)
OF_OPERATORS = (AdminService, HoldService, JournalService)


@pytest.mark.parametrize(
    ("service", "implementation"),
    [*((INVENTORY, each) for each in OF_CALLERS), *((ADMIN, each) for each in OF_OPERATORS)],
)
def test_every_public_method_is_a_call_of_the_contract(
    service: ServiceDescriptor, implementation: type
) -> None:
    """A misspelt one would be answered UNIMPLEMENTED."""
    public = methods_of(implementation)
    assert public
    assert public <= calls_of(service)


@pytest.mark.parametrize("implementations", [OF_CALLERS, OF_OPERATORS])
def test_no_call_is_answered_in_two_places(implementations: tuple[type, ...]) -> None:
    found = [name for each in implementations for name in methods_of(each)]
    assert len(found) == len(set(found))


def test_callers_are_served_with_every_call_of_the_contract() -> None:
    assert set().union(*map(methods_of, OF_CALLERS)) == calls_of(INVENTORY)


def calls_of(service: ServiceDescriptor) -> set[str]:
    return {re.sub(r"(?<!^)([A-Z])", r"_\1", method.name).lower() for method in service.methods}


def methods_of(implementation: type) -> set[str]:
    return {
        name
        for name, member in vars(implementation).items()
        if callable(member) and not name.startswith("_")
    }
