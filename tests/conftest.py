"""What every test runs under.

Blocking calls on the event loop are errors where acpd's own code makes them; a test itself may read a file.
"""

from __future__ import annotations

import builtins
import os
import signal
from collections.abc import Iterator
from types import ModuleType

import pytest
from blockbuster import BlockBuster, BlockBusterFunction
from hypothesis import HealthCheck, settings

# No deadline: two cores are shared with the processes of other tests. A push is judged by the same examples each time;
# `make fuzz` and `make e2e-full` look for new ones.
settings.register_profile(
    "acpd", deadline=None, print_blob=True, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("wide", settings.get_profile("acpd"), derandomize=False, max_examples=500)
settings.load_profile("acpd")

# A shell that runs the tests in the background lets them ignore it, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

_PRODUCT = ["acpd", "acpd_backends"]
_ALSO: list[tuple[ModuleType, str]] = [(os, "fsync"), (os, "fdatasync"), (os, "open"), (builtins, "open")]


@pytest.fixture(autouse=True, scope="session")
def blocking_calls_are_errors() -> Iterator[None]:
    """No call that can block runs on the event loop; blockbuster lets O_NONBLOCK writes pass."""
    guard = BlockBuster(scanned_modules=_PRODUCT)
    for module, name in _ALSO:
        if hasattr(module, name):  # macOS has no fdatasync
            guard.functions[f"{module.__name__}.{name}"] = BlockBusterFunction(module, name, scanned_modules=_PRODUCT)
    for name, function in guard.functions.items():
        if name.startswith("sqlite3."):  # what is brief goes to the system's memory
            function.can_block_in("acpd_backends/sqlite.py", "_write_here")
    guard.activate()
    yield
    guard.deactivate()
