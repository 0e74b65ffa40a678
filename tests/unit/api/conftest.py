from __future__ import annotations

import pytest

from tests.unit.api.kit import Api


@pytest.fixture
def api() -> Api:
    return Api()
