"""Version numbers as Java counts them."""

from __future__ import annotations

import pytest

from gimbalmq.protocol import codes
from gimbalmq.protocol.codes import version_name, version_number

VECTORS = {
    "3.0.6": 27,
    "3.0.11": 37,
    "3.4.9": 121,
    "4.0.0": 213,
    "4.1.0": 233,
    "4.2.0": 253,
    "4.3.0": 273,
    "4.4.0": 293,
    "4.5.0": 313,
    "4.6.0": 333,
    "4.7.0": 353,
    "4.7.1": 355,
    "4.8.0": 373,
    "4.9.0": 393,
    "4.9.3": 399,
    "4.9.4": 401,
    "4.9.8": 409,
    "4.9.9": 411,
    "5.0.0": 413,
    "5.1.0": 433,
    "5.1.4": 441,
    "5.2.0": 453,
    "5.3.0": 473,
    "5.3.1": 475,
    "5.3.3": 479,
    "5.3.4": 481,
    "5.5.0": 513,
    "5.9.9": 611,
}


@pytest.mark.parametrize(("release", "number"), VECTORS.items())
def test_release_and_number_name_each_other(release: str, number: int) -> None:
    assert version_number(release) == number
    assert version_name(number) == "V" + release.replace(".", "_")
    assert version_name(number - 1) == "V" + release.replace(".", "_") + "_SNAPSHOT"


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "V3_0_0_SNAPSHOT"),
        (15, "V3_0_0_FINAL"),
        (26, "V3_0_6_SNAPSHOT"),
        (28, "V3_0_7_SNAPSHOT"),
        (62, "V3_1_8_SNAPSHOT"),
        (211, "V3_9_9"),
        (232, "V4_1_0_SNAPSHOT"),
        (612, "HIGHER_VERSION"),
        (9999, "HIGHER_VERSION"),
        (-1, "V3_0_0_SNAPSHOT"),
    ],
)
def test_name_of_any_number(number: int, name: str) -> None:
    assert version_name(number) == name


def test_constants_fit_the_scale() -> None:
    assert version_number("3.4.9") == codes.V3_4_9
    assert version_number("4.9.3") == codes.V4_9_3
    assert version_number("4.9.4") == codes.V4_9_4
    assert version_number("5.0.0") == codes.V5_0_0
    assert version_number("3.0.11") == codes.V3_0_11
    assert version_number("4.9.8-SNAPSHOT") == 408


@pytest.mark.parametrize("release", ["", "4.9", "4.9.10", "6.0.0", "four"])
def test_release_that_never_was_is_refused_by_name(release: str) -> None:
    with pytest.raises(ValueError, match="no release"):
        version_number(release)
