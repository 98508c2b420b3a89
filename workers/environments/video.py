"""Encoder of an episode's images into a file that browsers show: animated WebP, a third of a GIF's size."""

from collections.abc import Sequence
from io import BytesIO

from PIL import Image

from workers.environments.environment import Frame

#: Maximum images of a video: a longer episode keeps every second image, then every fourth, ...
MAX_FRAMES = 300
FRAME_MS = 50


class Recorder:
    """Recorder that keeps evenly spaced images of an episode, in bounded memory."""

    def __init__(self) -> None:
        self._frames: list[Frame] = []
        self._every, self._seen = 1, 0

    def wants_next(self) -> bool:
        """Check whether the next image would be kept; if not, it need not be rendered."""
        self._seen += 1
        return (self._seen - 1) % self._every == 0

    def add(self, frame: Frame) -> None:
        if len(self._frames) >= MAX_FRAMES:
            self._frames = self._frames[::2]
            self._every *= 2
        self._frames.append(frame)

    def encode(self) -> bytes:
        return encode(self._frames, FRAME_MS * self._every)


def encode(frames: Sequence[Frame], frame_ms: int = FRAME_MS) -> bytes:
    first, *rest = (Image.fromarray(frame) for frame in frames)
    file = BytesIO()
    first.save(file, "WEBP", save_all=True, append_images=rest, duration=frame_ms, loop=0, quality=75, method=4)
    return file.getvalue()
