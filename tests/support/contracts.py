"""Contracts: tests that several implementations must pass."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any


class Contract(ABC):
    """Tests that are coroutines, each of which gets a new implementation."""

    @abstractmethod
    def run(self, scenario: Callable[[Any], Awaitable[None]]) -> None:
        """Run a scenario against a new implementation."""

    def __init_subclass__(cls) -> None:
        for name, test in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(test):
                setattr(cls, name, _running(test))


def _running(test: Callable[[Any, Any], Awaitable[None]]) -> Callable[[Contract], None]:
    def run(self: Contract) -> None:
        self.run(partial(test, self))

    return run
