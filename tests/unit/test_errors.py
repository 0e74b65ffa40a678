"""What a program may make of an error follows from its code alone."""

from __future__ import annotations

import contextlib

import pytest

from replset.errors import ErrorCode, ReplError, Trait, code_name, forget_frames, has_trait, http_status_of

RETRYABLE = {6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436}
"""As the drivers' specification of retryable writes lists them (map B4)."""


def test_retryable_are_those_of_the_drivers_specification() -> None:
    assert {code for code in ErrorCode if has_trait(code, Trait.RETRYABLE)} == RETRYABLE


def test_who_may_send_it_again_is_never_told_that_the_request_is_wrong() -> None:
    for code in ErrorCode:
        if code.traits & (Trait.RETRYABLE | Trait.ROLE | Trait.SHUTDOWN):
            assert code.http_status == 503, code


@pytest.mark.parametrize(("code", "status"), [(2, 400), (11000, 409), (64, 504), (10107, 503), (999_999, 400)])
def test_the_http_status_of_a_code(code: int, status: int) -> None:
    assert http_status_of(code) == status


def test_a_number_that_is_not_in_the_table_has_a_name_and_no_trait() -> None:
    error = ReplError("?", code=999_999)
    assert (code_name(999_999), error.code_name) == ("Location999999", "Location999999")
    assert not any(error.has(trait) for trait in Trait)


def test_an_error_lets_go_of_its_frames_and_of_those_of_its_causes() -> None:
    errors = [ValueError(str(number)) for number in range(3)]

    def raised(number: int) -> None:
        try:
            raise errors[number]
        except ValueError:
            if number:
                raised(number - 1)

    with contextlib.suppress(ValueError):
        raised(2)
    assert [error.__context__ for error in errors] == [errors[1], errors[2], None]
    assert all(error.__traceback__ for error in errors)
    forget_frames(errors[0])
    assert not any(error.__traceback__ for error in errors)


def test_a_ring_of_causes_has_an_end() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__context__ = second, first
    forget_frames(first)
