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

BEFORE = "before_"
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


@pytest.mark.parametrize("implementation", [*OF_CALLERS, *OF_OPERATORS])
def test_what_is_asked_before_a_message_is_parsed_belongs_to_a_unary_call(
    implementation: type,
) -> None:
    """A stream's messages are parsed by gRPC, which takes what goes wrong there for a broken message."""
    unary = {
        _snake_case(method.name)
        for service in (INVENTORY, ADMIN)
        for method in service.methods
        if not (method.client_streaming or method.server_streaming)
    }
    asked = {name for name in public_of(implementation) if name.startswith(BEFORE)}
    assert {name.removeprefix(BEFORE) for name in asked} <= unary & methods_of(implementation)


def calls_of(service: ServiceDescriptor) -> set[str]:
    return {_snake_case(method.name) for method in service.methods}


def methods_of(implementation: type) -> set[str]:
    return {name for name in public_of(implementation) if not name.startswith(BEFORE)}


def public_of(implementation: type) -> set[str]:
    return {
        name
        for name, member in vars(implementation).items()
        if callable(member) and not name.startswith("_")
    }


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
