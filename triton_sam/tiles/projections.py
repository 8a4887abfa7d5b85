"""From longitude and latitude (WGS 84, EPSG:4326) to the reference systems that most maps have.

Web Mercator (EPSG:3857) is a formula of two lines; UTM (EPSG:32601 to 32660 and 32701 to 32760) is the transverse
Mercator projection by the series of Krüger, exact to less than a millimetre within a zone.

References: OGP Guidance Note 7-2, sections "Popular Visualisation Pseudo-Mercator" and "Transverse Mercator";
C. F. F. Karney, Transverse Mercator with an accuracy of a few nanometers, equations 7 to 12 and 35.
"""

from __future__ import annotations

import math

import numpy as np

from ..errors import InputError
from ..masks.rings import FloatPoints

WGS84, WEB_MERCATOR = 4326, 3857
_AXIS, _FLATTENING = 6378137.0, 1 / 298.257223563
_N = _FLATTENING / (2 - _FLATTENING)
_RADIUS = _AXIS / (1 + _N) * (1 + _N**2 / 4 + _N**4 / 64)
_SERIES = (
    _N / 2 - 2 * _N**2 / 3 + 5 * _N**3 / 16 + 41 * _N**4 / 180,
    13 * _N**2 / 48 - 3 * _N**3 / 5 + 557 * _N**4 / 1440,
    61 * _N**3 / 240 - 103 * _N**4 / 140,
    49561 * _N**4 / 161280,
)
_SCALE, _EASTING, _SOUTHERN = 0.9996, 500_000.0, 10_000_000.0
MAX_LATITUDE = 85.06
"""Web Mercator ends there."""


def from_degrees(points: FloatPoints, epsg: int) -> FloatPoints:
    """Return longitudes and latitudes (N,2) in degrees as coordinates of another reference system.

    Args:
        points: longitude first.
        epsg: number of the other system: 3857, a zone of UTM on WGS 84, or 4326 itself.

    Raises:
        InputError: the system is another one, or a point lies outside of it.
    """
    degrees = np.asarray(points, np.float64)
    longitude, latitude = degrees.T
    if not (np.abs(longitude) <= 360).all() or not (np.abs(latitude) <= 90).all():
        raise InputError("a longitude lies within -360 to 360 degrees, and a latitude within -90 to 90")
    if epsg == WGS84:
        return degrees
    if epsg == WEB_MERCATOR:
        if not (np.abs(latitude) <= MAX_LATITUDE).all():
            raise InputError(f"EPSG:{WEB_MERCATOR} has no latitude beyond {MAX_LATITUDE} degrees")
        north = np.arctanh(np.sin(np.radians(latitude)))
        return np.stack([_AXIS * np.radians(longitude), _AXIS * north], axis=1)
    zone, is_south = epsg % 100, epsg // 100 == 327
    if epsg // 100 not in (326, 327) or not 1 <= zone <= 60:
        raise InputError(f"longitude and latitude cannot be turned into EPSG:{epsg}: send coordinates of the image")
    return _utm(longitude, latitude, 6 * zone - 183, _SOUTHERN if is_south else 0.0)


def _utm(longitude: FloatPoints, latitude: FloatPoints, meridian: float, northing: float) -> FloatPoints:
    across = np.radians((longitude - meridian + 180) % 360 - 180)
    if not (np.abs(across) < math.radians(60)).all():
        raise InputError("a point lies too far from the zone of the image")
    eccentricity = math.sqrt(_FLATTENING * (2 - _FLATTENING))
    sine = np.clip(np.sin(np.radians(latitude)), -1 + 1e-15, 1 - 1e-15)
    tangent = np.sinh(np.arctanh(sine) - eccentricity * np.arctanh(eccentricity * sine))
    up = np.arctan2(tangent, np.cos(across))
    right = np.arcsinh(np.sin(across) / np.hypot(tangent, np.cos(across)))
    waves = [(2 * (place + 1), factor) for place, factor in enumerate(_SERIES)]
    north = up + sum(factor * np.sin(wave * up) * np.cosh(wave * right) for wave, factor in waves)
    east = right + sum(factor * np.cos(wave * up) * np.sinh(wave * right) for wave, factor in waves)
    scale = _SCALE * _RADIUS
    return np.stack([_EASTING + scale * east, northing + scale * north], axis=1)
