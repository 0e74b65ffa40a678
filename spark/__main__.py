"""`python -m spark COMMAND MEMBER...`, and `spark-submit .../spark/__main__.py COMMAND MEMBER...`."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    if not __package__:  # run as a file: the files beside it must not be imported as modules of the top level
        here = Path(__file__).resolve().parent
        sys.path[:] = [str(here.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != here)]
    from spark.cli import main

    sys.exit(main())
