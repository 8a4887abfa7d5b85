"""Video files that are unlike those of a camera: which stream is read, and where a player shows the pixels."""

import contextlib
import io
import struct
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image
from support.video_files import add_stream, encode, write_video

from triton_sam.errors import VideoError
from triton_sam.inputs.video import open_frames

av = pytest.importorskip("av")

WIDTH, HEIGHT, COUNT = 64, 48, 20
COLORS = np.array([[[250, 250, 250], [20, 20, 20]], [[20, 20, 250], [250, 20, 20]]], np.uint8)
"""The four quarters of each frame, so that no turned or mirrored one is like another."""


def quarters(width=WIDTH, height=HEIGHT):
    rows, columns = np.arange(height) * 2 // height, np.arange(width) * 2 // width
    return COLORS[rows[:, None], columns[None]]


def write(path, count=COUNT, times=None, **stream):
    return write_video(path, [quarters()] * count, times, **stream)


def opened(video):
    return contextlib.closing(open_frames(video))


def pixels(source, index=0):
    return np.asarray(Image.open(io.BytesIO(source.frame(index).content)))


def told(image):
    """Return the nearest of the four colours at the centres of the quarters of an image."""
    height, width = image.shape[:2]
    centres = image[np.ix_([height // 4, height * 3 // 4], [width // 4, width * 3 // 4])].astype(int)
    distances = np.abs(centres[..., None, :] - COLORS.reshape(-1, 3).astype(int)).sum(-1)
    return COLORS.reshape(-1, 3)[distances.argmin(-1)]


def shown_by_a_player(path):
    """Count the frames that FFmpeg's decoder gives from the beginning of a file."""
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


# --- which stream ---

COVER = {"codec": "mjpeg", "width": 32, "height": 32, "pix_fmt": "yuvj420p", "gop_size": 1}


def with_cover(path, cover_first, attached=True):
    """Write a video with a picture of another size, as programs for music and films do."""
    with av.open(str(path), "w") as container:
        streams = {}
        for name in ("cover", "film") if cover_first else ("film", "cover"):
            is_cover = name == "cover"
            streams[name] = add_stream(container, **(COVER if is_cover else {}))
        if attached and hasattr(av.stream, "Disposition"):
            streams["cover"].disposition = av.stream.Disposition.attached_pic
        encode(container, streams["cover"], [quarters(32, 32)])
        encode(container, streams["film"], [quarters()] * COUNT)
    return path


@pytest.mark.parametrize("cover_first", [True, False])
@pytest.mark.parametrize("attached", [True, False])
@pytest.mark.parametrize("kind", ["mp4", "mkv", "mov"])
def test_a_cover_picture_is_not_the_video(tmp_path, kind, attached, cover_first):
    with opened(with_cover(tmp_path / f"clip.{kind}", cover_first, attached)) as source:
        assert (source.num_frames, source.size) == (COUNT, (WIDTH, HEIGHT))
        assert [pixels(source, index).shape for index in (COUNT - 1, 0)] == [(HEIGHT, WIDTH, 3)] * 2


def test_a_cover_picture_alone_is_no_video(tmp_path):
    if not hasattr(av.stream, "Disposition"):
        pytest.skip("this PyAV does not say which stream is a cover")
    with av.open(str(tmp_path / "song.mp4"), "w") as container:
        sound, cover = container.add_stream("aac", rate=8000), add_stream(container, **COVER)
        cover.disposition = av.stream.Disposition.attached_pic
        encode(container, cover, [quarters(32, 32)])
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux(sound.encode(frame))
        container.mux(sound.encode())
    with pytest.raises(VideoError, match=r"song\.mp4 holds no video stream, only a cover image"):
        open_frames(tmp_path / "song.mp4")


# --- where pixels lie ---

MATRICES = {  # a, b, c, d of (x', y') = (ax + cy, bx + dy), and what numpy does to the pixels
    "upright": ((1, 0, 0, 1), lambda image: image),
    "quarter": ((0, 1, -1, 0), lambda image: np.rot90(image, 3)),
    "half": ((-1, 0, 0, -1), lambda image: np.rot90(image, 2)),
    "three quarters": ((0, -1, 1, 0), lambda image: np.rot90(image, 1)),
    "mirrored": ((-1, 0, 0, 1), np.fliplr),
    "upside down": ((1, 0, 0, -1), np.flipud),
    "transposed": ((0, 1, 1, 0), lambda image: image.swapaxes(0, 1)),
    "transversed": ((0, -1, -1, 0), lambda image: np.rot90(image, 2).swapaxes(0, 1)),
}


def turned(path, matrix):
    """Write the display matrix into the head of an MP4 file."""
    content = bytearray(path.read_bytes())
    place = content.index(b"tkhd") + 4 + 4 + 20 + 8 + 8
    a, b, c, d = (value << 16 for value in matrix)
    content[place : place + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(("matrix", "expected"), MATRICES.values(), ids=MATRICES.keys())
@pytest.mark.parametrize("as_stream", [False, True])
def test_turned_and_mirrored_videos_are_as_a_player_shows_them(tmp_path, matrix, expected, as_stream):
    path = turned(write(tmp_path / "clip.mp4", sample_aspect_ratio=Fraction(2)), matrix)
    upright = expected(quarters())
    with path.open("rb") as file, opened(file if as_stream else path) as source:
        assert source.size == (upright.shape[1], upright.shape[0])
        np.testing.assert_array_equal(told(pixels(source)), told(upright))
        is_sideways = source.size == (HEIGHT, WIDTH)
        assert source.pixel_ratio == (Fraction(1, 2) if is_sideways else 2)


UNUSUAL = {  # codec, pixel format, size, and the largest difference of a value
    "odd.mkv": ("ffv1", "yuv420p", (63, 47), 8),
    "odd444.mp4": ("libx264", "yuv444p", (63, 47), 12),
    "ten bits.mp4": ("libx264", "yuv420p10le", (WIDTH, HEIGHT), 12),
    "alpha.mov": ("qtrle", "argb", (WIDTH, HEIGHT), 0),
    "alpha.mkv": ("ffv1", "yuva420p", (WIDTH, HEIGHT), 8),
    "grey of 16 bits.mkv": ("ffv1", "gray16le", (WIDTH, HEIGHT), None),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_pixels_keep_their_places_and_colours(tmp_path, name):
    codec, form, size, difference = UNUSUAL[name]
    drawn = quarters(*size)
    written = write_video(tmp_path / name, [drawn] * COUNT, codec=codec, pix_fmt=form, width=size[0], height=size[1])
    with opened(written) as source:
        image = pixels(source, COUNT - 1).astype(int)
        assert source.pixel_ratio == 1
    assert image.shape == (size[1], size[0], 3)
    if difference is None:  # grey
        assert image.max(axis=2).tolist() == image.min(axis=2).tolist()
        assert (image[2, 2] > image[2, -3]).all()
        return
    flat = np.ones(drawn.shape[:2], bool)  # colours have half the resolution
    flat[size[1] // 2 - 4 : size[1] // 2 + 4] = flat[:, size[0] // 2 - 4 : size[0] // 2 + 4] = False
    assert np.abs(image - drawn)[flat].max() <= difference


# --- which frames ---


@pytest.mark.parametrize("b_frames", [0, 2])
@pytest.mark.parametrize("kind", ["mp4", "mkv", "ts"])
def test_a_file_that_begins_between_key_frames_has_the_frames_that_a_player_shows(tmp_path, kind, b_frames):
    whole, path = write(tmp_path / f"whole.{kind}", codec="libx264", max_b_frames=b_frames), tmp_path / f"cut.{kind}"
    with av.open(str(whole)) as container, av.open(str(path), "w") as cut:
        stream = cut.add_stream_from_template(container.streams.video[0])
        for number, packet in enumerate(packet for packet in container.demux(video=0) if packet.size):
            if number >= 3:
                packet.stream = stream
                cut.mux(packet)
    with opened(path) as source:
        assert 0 < source.num_frames < COUNT
        assert source.num_frames == shown_by_a_player(path)
        for index in (source.num_frames - 1, 0, source.num_frames // 2):
            np.testing.assert_array_equal(told(pixels(source, index)), COLORS)


def test_frames_before_the_start_of_an_edit_list_do_not_count(tmp_path):
    path = write(tmp_path / "clip.mp4", codec="libx264")
    content = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        frame = round(1 / (container.streams.video[0].time_base * 10))
    place = content.index(b"elst") + 16
    content[place : place + 4] = struct.pack(">i", 4 * frame)
    path.write_bytes(content)
    with opened(path) as source:
        assert source.num_frames == shown_by_a_player(path) == COUNT - 4
        np.testing.assert_array_equal(told(pixels(source, COUNT - 5)), COLORS)


@pytest.mark.parametrize("kind", ["mp4", "mkv"])
def test_a_video_of_variable_rate_has_every_frame_once_and_its_mean_rate(tmp_path, kind):
    times = [0, 40, 80, 500, 540, 1000, 1010, 1500, 3000, 3040]
    path = write(tmp_path / f"clip.{kind}", count=len(times), times=times, codec="libx264")
    with opened(path) as source:
        assert source.num_frames == len(times)
        assert float(source.rate) == pytest.approx((len(times) - 1) / 3.04, rel=0.02)
        assert [source.frame(index).index for index in range(len(times))] == list(range(len(times)))
