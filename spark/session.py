"""The Spark session behind every command: a quiet local one, or on the master that was asked for; and how far its jobs
are: the tasks of the stages that run now, asked of Spark twice a second.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from replset.errors import ReplError
from replset.long_work import LongWork
from replset.own_process import ROOT
from replset.text import printable
from spark.java import find_java, home_for_spark
from spark.shipping import reason_of, ship

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

LOGGING = Path(__file__).with_name("log4j2.properties")
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
}
LOCAL_DEFAULTS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
GATEWAY = "PYSPARK_GATEWAY_PORT"
"""Set when spark-submit started this process, and Java before it."""
CONNECT_S = 10
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


class SessionError(ReplError):
    """Spark could not be started."""


def spark_session(
    *, master: str | None = None, app: str = "oplog-spark", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process; made where there is none, in the context that `spark_context` gives."""
    spark_context(master=master, app=app, conf=conf)
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def spark_context(
    *, master: str | None = None, app: str = "oplog-spark", conf: Mapping[str, str] | None = None
) -> SparkContext:
    """Spark without its SQL, which takes as long to load again. What a session made in it will be set to is set.

    The context of this process; made where there is none, on `master`, else spark-submit's, else `local[*]`. `conf`
    wins over spark-submit's settings and spark-defaults.conf, and those over the defaults here. One that
    exists already is taken as it is. One line on stderr names the Java that was started. Raises
    JavaMissingError, SessionError.
    """
    from pyspark import SparkConf, SparkContext

    if SparkContext._active_spark_context is not None:
        return _ready(SparkContext._active_spark_context)
    asked = dict(conf or {})
    if master is not None:
        asked["spark.master"] = master
    try:
        if SparkContext._gateway is None:
            _start_java(asked)
        settings = SparkConf()  # of the JVM: with all that spark-submit and spark-defaults.conf set
        for name, value in asked.items():
            settings.set(name, value)
        return _context(settings, app)
    except ReplError:
        raise
    except Exception as error:
        raise SessionError(f"Spark does not start: {reason_of(error)}") from error


def is_local(master: str | None) -> bool:
    """Whether the executors are threads of this machine's JVM, and its Python's workers import what it imports."""
    return re.fullmatch(r"local(\[.*\])?", master or "") is not None


def _start_java(asked: Mapping[str, str]) -> None:
    """The JVM, with what it must know from its birth: the heap, the way to the master, where to log."""
    from pyspark import SparkConf, SparkContext

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if GATEWAY in os.environ:
        SparkContext._ensure_initialized()
        return
    java = find_java(os.environ)
    print(printable(f"oplog-spark: {java}"), file=sys.stderr, flush=True)
    options = f"-Dlog4j2.configurationFile={LOGGING.as_uri()} {os.environ.get('SPARK_SUBMIT_OPTS', '')}"
    # The workers of a local session are started in the working directory, and a folder `spark` there is not ours.
    ours = {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])}
    launch = SparkConf(loadDefaults=False)
    for name, value in {"spark.ui.showConsoleProgress": "false", **asked}.items():
        launch.set(name, value)
    with _environment(JAVA_HOME=str(home_for_spark(java)), SPARK_SUBMIT_OPTS=options.strip(), **ours):
        SparkContext._ensure_initialized(conf=launch)


def _context(settings: SparkConf, app: str) -> SparkContext:
    from pyspark import SparkContext

    if settings.get("spark.app.name") in (None, "pyspark-shell", "__main__.py"):
        settings.setAppName(app)
    master = settings.setIfMissing("spark.master", "local[*]").get("spark.master") or ""
    local = is_local(master)
    if master.startswith("spark://"):
        _check_reachable(master)
    submitted = {"spark.log.level": "ERROR"} if GATEWAY in os.environ else {}  # its Java had another LOGGING
    for name, value in (DEFAULTS | submitted | (LOCAL_DEFAULTS if local else {})).items():
        settings.setIfMissing(name, value)
    context = SparkContext.getOrCreate(settings)
    if local and settings.get(SHUFFLE_PARTITIONS) is None:
        # Java's own settings of the context: sessions begin with them, and how many cores it has is known only now.
        context._jsc.sc().conf().set(SHUFFLE_PARTITIONS, str(max(8, 2 * context.defaultParallelism)))
    return _ready(context)


def _ready(context: SparkContext) -> SparkContext:
    """The context, with our modules in its executors."""
    if not is_local(context.master):
        ship(context)
    return context


def _check_reachable(master: str) -> None:
    """Spark itself would try for a minute, in silence. master: spark://HOST:PORT[,HOST:PORT...]."""
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        with suppress(OSError, ValueError, OverflowError):
            socket.create_connection((host, int(port)), CONNECT_S).close()
            return
    raise SessionError(f"no Spark master answers at {master}")


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


ASK_EVERY_S: Final = 0.5


class SparkTasks:
    """Asks in a thread of its own, until `close`."""

    def __init__(self, context: SparkContext, work: LongWork) -> None:
        self._tracker = context.statusTracker()
        self._work = work
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark-progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Return when nothing is asked any more. Spark may be stopped then."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        with suppress(Exception):  # Spark has ended meanwhile, or its Java has; whoever uses it says so
            while not self._is_over.wait(ASK_EVERY_S):
                stages = [self._tracker.getStageInfo(stage) for stage in self._tracker.getActiveStageIds()]
                running = [stage for stage in stages if stage is not None]
                if running:
                    done = sum(stage.numCompletedTasks for stage in running)
                    self._work.update(done, sum(stage.numTasks for stage in running))
