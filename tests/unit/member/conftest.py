from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.unit.member.served import Served, serving


@pytest.fixture
def served(loop: asyncio.AbstractEventLoop) -> Iterator[Served]:
    """A wire server on a real socket, in modules that are ON_SOCKETS."""
    context = serving()
    yield loop.run_until_complete(context.__aenter__())
    loop.run_until_complete(context.__aexit__(None, None, None))
