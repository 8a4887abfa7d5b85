"""Longitude and latitude on maps, against values of PROJ and of EPSG's guidance notes."""

import numpy as np
import pytest

from triton_sam.errors import InputError
from triton_sam.tiles.projections import from_degrees


@pytest.mark.parametrize(
    ("epsg", "point", "expected"),
    [
        (32617, [-80, 50], [571666.4475, 5539109.8152]),
        (32632, [9, 0], [500000, 0]),
        (32760, [177, 0], [500000, 10_000_000]),
        (3857, [10, 50], [1113194.9079, 6446275.8410]),
        (4326, [10, 50], [10, 50]),
    ],
)
def test_known_places(epsg, point, expected):
    np.testing.assert_allclose(from_degrees([point], epsg), [expected], rtol=0, atol=2e-3)


def test_a_zone_beyond_the_date_line():
    west, east = from_degrees([[179.9, 10], [-179.9, 10]], 32660)[:, 0]
    assert 0 < east - west < 30_000


@pytest.mark.parametrize(("point", "epsg"), [([0, 91], 3857), ([0, 89], 3857), ([np.nan, 0], 32631), ([0, 0], 27700)])
def test_places_that_a_map_does_not_have(point, epsg):
    with pytest.raises(InputError):
        from_degrees([point], epsg)
