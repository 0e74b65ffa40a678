"""All targets by name."""

from __future__ import annotations

from tools.fuzz import answers, bson, commands, ejson, http, members, openapi, wire
from tools.fuzz.kit import Target

_MODULES = (bson, ejson, wire, commands, members, answers, http, openapi)
TARGETS: dict[str, Target] = {module.TARGET.name: module.TARGET for module in _MODULES}
