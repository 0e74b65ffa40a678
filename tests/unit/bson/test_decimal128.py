"""Decimal128 strings and bits, after the Decimal128 section of the BSON specification."""

from __future__ import annotations

from decimal import Decimal

import pytest

from replset.bson import Decimal128, InvalidValueError

DIGITS_34 = "1234567890123456789012345678901234"
NINES_34 = "9" * 34


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # as they are
        *((text, text) for text in ("0", "-0", "0.0", "1", "-1", "1.50", "100", "0.001234", "0.000001234")),
        ("0.00000012", "1.2E-7"),
        *((text, text) for text in ("1E+3", "1.2E+4")),
        ("12E+3", "1.2E+4"),
        *((text, text) for text in ("1E-6176", DIGITS_34, "9." + "9" * 33 + "E+6144")),
        # spellings
        ("+1", "1"),
        ("1.", "1"),
        (".5", "0.5"),
        ("-.5", "-0.5"),
        ("1e3", "1E+3"),
        ("1E03", "1E+3"),
        ("1e-3", "0.001"),
        ("00012", "12"),
        ("0" * 50 + "1", "1"),
        *((text, text) for text in ("NaN",)),
        ("-nan", "NaN"),
        *((text, text) for text in ("Infinity",)),
        ("inf", "Infinity"),
        ("+INF", "Infinity"),
        ("-infinity", "-Infinity"),
        # exact rounding: only zeros go
        ("1" + "0" * 40, "1." + "0" * 33 + "E+40"),
        (DIGITS_34 + "0", "1.234567890123456789012345678901234E+34"),
        ("1." + "0" * 50, "1." + "0" * 33),
        ("0." + "0" * 50, "0E-50"),
        ("10E-6177", "1E-6176"),
        ("1000E-6179", "1E-6176"),
        # clamping
        ("1E+6112", "1.0E+6112"),
        ("1E+6144", "1." + "0" * 33 + "E+6144"),
        ("12E+6143", "1.2" + "0" * 32 + "E+6144"),
        ("0E+6112", "0E+6111"),
        ("0E-6177", "0E-6176"),
        ("-0E+99999999999999999999999", "-0E+6111"),
        ("0E-99999999999999999999999", "0E-6176"),
    ],
)
def test_strings(text: str, expected: str) -> None:
    value = Decimal128(text)
    assert str(value) == expected
    assert Decimal128(value.bid) == value
    assert str(Decimal128(expected)) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", " 1", "1 ", "1\n", "+", ".", "e5", "1e", "1e+", "1.2.3", "--1", "1,5", "0x10", "1_0", "\u0661"),
        *("infinit", "NaN1", DIGITS_34 + "5", "1." + "0" * 33 + "1", "1E-6177", "15E-6177", "1E+6145", "10E+6144"),
        *(NINES_34 + "E+6112", "1E+99999999999999999999999", "1E-99999999999999999999999", "9" * 5000),
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        Decimal128(text)


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        # High byte last. The bits as the specification's table of combinations gives them.
        ("01000000000000000000000000004030", "1"),
        ("010000000000000000000000000040b0", "-1"),
        ("00000000000000000000000000004030", "0"),
        ("000000000000000000000000000040b0", "-0"),
        ("00000000000000000000000000003e30", "0.0"),
        ("f2af967ed05c82de3297ff6fde3c4030", DIGITS_34),
        ("ffffffff638e8d37c087adbe09edff5f", "9." + "9" * 33 + "E+6144"),
        ("01000000000000000000000000000000", "1E-6176"),
        ("0000000000000000000000000000007c", "NaN"),
        ("000000000000000000000000000000fc", "NaN"),
        ("1200000000000000000000000000007c", "NaN"),
        ("0000000000000000000000000000007e", "NaN"),
        ("00000000000000000000000000000078", "Infinity"),
        ("000000000000000000000000000000f8", "-Infinity"),
        ("01000000000000000000000000000078", "Infinity"),
        # coefficients above 34 digits count as zero, in both forms
        ("00000000648e8d37c087adbe09ed4130", "0"),
        ("ffffffffffffffffffffffffff7f106c", "0"),
        ("000000000000000000000000000010ec", "-0"),
    ],
)
def test_bits(bits: str, text: str) -> None:
    value = Decimal128(bytes.fromhex(bits))
    assert value.bid.hex() == bits
    assert str(value) == text


def test_decimal_and_back() -> None:
    for text in ("0", "-0.00", "1.50", "1E+3", "-9.99E-100", "Infinity", "-Infinity"):
        assert Decimal128(text).to_decimal() == Decimal(text)
        assert Decimal128(text).to_decimal().as_tuple() == Decimal(text).as_tuple()
        assert Decimal128.from_decimal(Decimal(text)) == Decimal128(text)
    assert Decimal128("NaN").to_decimal().is_nan()
    assert Decimal128.from_decimal(Decimal("-NaN123")) == Decimal128("NaN")
    with pytest.raises(InvalidValueError):
        Decimal128.from_decimal(Decimal(1).scaleb(7000))


def test_equal_by_bits() -> None:
    assert Decimal128("1") != Decimal128("1.0")
    assert Decimal128("1.0") == Decimal128("1.0")
    assert repr(Decimal128("1.0")) == "Decimal128('1.0')"
    assert Decimal128("1") != 1
