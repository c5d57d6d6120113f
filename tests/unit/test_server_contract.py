"""The server's methods are the contract's."""

import re

import pytest
from google.protobuf.descriptor import ServiceDescriptor

from server.admin import AdminService
from server.listener import ADMIN, INVENTORY
from server.service import InventoryService


@pytest.mark.parametrize(
    ("service", "implementation"), [(INVENTORY, InventoryService), (ADMIN, AdminService)]
)
def test_every_public_method_is_a_call_of_the_contract(
    service: ServiceDescriptor, implementation: type
) -> None:
    """A misspelt one would be answered UNIMPLEMENTED."""
    calls = {re.sub(r"(?<!^)([A-Z])", r"_\1", method.name).lower() for method in service.methods}
    public = {
        name
        for name, member in vars(implementation).items()
        if callable(member) and not name.startswith("_")
    }
    assert public
    assert public <= calls
