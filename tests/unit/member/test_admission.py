"""How much large requests and answers may hold together."""

from __future__ import annotations

from replset.operations.admission import Admission


def test_requests_are_admitted_up_to_the_limit() -> None:
    admission = Admission(100)
    assert [admission.admit(60), admission.admit(50), admission.admit(40)] == [True, False, True]
    assert (admission.in_use, admission.refused, admission.is_full) == (100, 1, True)
    admission.release(60)
    assert not admission.is_full
    assert admission.admit(60)


def test_one_request_over_the_limit_is_admitted_alone() -> None:
    admission = Admission(100)
    assert admission.admit(150)
    assert not admission.admit(1)
    admission.release(150)
    assert admission.admit(1)


def test_answers_are_counted_whatever_there_is() -> None:
    admission = Admission(100)
    admission.add(300)
    assert admission.is_full
    refusal = admission.refusal()
    assert (refusal.code, refusal.labels) == (462, ("SystemOverloadedError", "RetryableError"))
