"""One Spark session for the whole run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.session import spark_session
from tests.spark.background import Background, background_programs, waits_for_background
from tests.spark.cluster import SHORT_LIVED

HERE = Path(__file__).parent
NO_CODE = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""To compile each of some hundred plans for a hundred rows is a tenth of the work. What runs beside (the cluster, the
commands) has the product's own settings.
"""


@pytest.fixture(scope="session")
def background(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    with background_programs(request.session.items, tmp_path_factory) as programs:
        yield programs


@pytest.fixture(scope="session")
def spark(background: Background) -> Iterator[SparkSession]:
    """local[2] with a heap of 1 GiB."""
    conf = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": SHORT_LIVED, **NO_CODE}
    session = spark_session(master="local[2]", app="tests", conf=conf)
    yield session
    session.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            item.add_marker("spark")
    items.sort(key=waits_for_background)
