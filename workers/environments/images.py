"""Conversion of camera images into the form that policies were trained on."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from workers.environments.environment import Frame


def upright(picture: NDArray[np.uint8]) -> Frame:
    """Rotate an image by 180 degrees: LIBERO's cameras hang upside down."""
    return np.ascontiguousarray(picture[::-1, ::-1])


def fit(picture: Frame, size: int) -> Frame:
    """Scale the whole image into a square of this size, undistorted; the rest of the square is black."""
    height, width = picture.shape[:2]
    if (height, width) == (size, size):
        return picture
    ratio = max(width, height) / size
    inner = (int(width / ratio), int(height / ratio))
    square = Image.new("RGB", (size, size))
    corner = ((size - inner[0]) // 2, (size - inner[1]) // 2)
    square.paste(Image.fromarray(picture).resize(inner, Image.Resampling.BILINEAR), corner)
    return np.asarray(square)
