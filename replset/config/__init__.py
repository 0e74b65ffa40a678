"""The replica-set configuration (map A1)."""

from replset.config.member import MAX_MEMBER_ID, Member, next_member_id, parse_host
from replset.config.replset_config import (
    MAX_GIVEN_VERSION,
    MAX_MEMBERS,
    MAX_VERSION,
    MAX_VOTERS,
    ReplSetConfig,
    Tolerance,
    is_weaker,
)
from replset.config.settings import Settings, TagCounts, parse_tag_counts

__all__ = [
    "MAX_GIVEN_VERSION",
    "MAX_MEMBERS",
    "MAX_MEMBER_ID",
    "MAX_VERSION",
    "MAX_VOTERS",
    "Member",
    "ReplSetConfig",
    "Settings",
    "TagCounts",
    "Tolerance",
    "is_weaker",
    "next_member_id",
    "parse_host",
    "parse_tag_counts",
]
