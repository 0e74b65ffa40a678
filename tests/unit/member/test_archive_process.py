"""The process of the archive may end, or answer nonsense or nothing: an error of the archive, and it begins anew."""

from __future__ import annotations

import asyncio

import pytest

from replset.features.archive import archive_process
from replset.features.archive.archive_process import ArchiveProcess
from replset.features.archive.files import ArchiveError


@pytest.mark.parametrize(
    ("module", "answer_within_s", "reason"),
    [
        ("this", 60, "its process ended"),  # writes a text and ends
        ("nothing_of_this_name", 60, "its process ended"),
        ("asyncio", 0.3, "does not answer"),  # reads its input, and answers nothing before the end of it
    ],
)
def test_a_process_that_fails(
    monkeypatch: pytest.MonkeyPatch, module: str, answer_within_s: float, reason: str
) -> None:
    monkeypatch.setattr(archive_process, "MODULE", module)
    monkeypatch.setattr(archive_process, "ANSWER_WITHIN_S", answer_within_s)

    async def test() -> None:
        process = ArchiveProcess("address")
        for _ in range(2):
            with pytest.raises(ArchiveError, match=reason):
                await process.oldest()
            assert process._process is None
        await process.close()

    asyncio.run(test())
