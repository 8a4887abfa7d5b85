"""Sources of frames: files with B-frames, folders, lists, generators, and all that can be wrong with them."""

import io
import sys

import numpy as np
import pytest
from PIL import Image
from support.video_files import write_video

from triton_sam.errors import ConfigurationError, MissingDependencyError, VideoError
from triton_sam.inputs.images import open_image
from triton_sam.inputs.video import base, open_frames
from triton_sam.inputs.video import files as video_files

av = pytest.importorskip("av")

COUNT, WIDTH, HEIGHT = 50, 64, 48


def drawn(index):
    """Return a frame that tells its index: six bits as six wide columns."""
    frame = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    for bit in range(6):
        if index >> bit & 1:
            frame[:, bit * 10 : bit * 10 + 10] = 255
    return frame


def told(frame):
    """Return the index that a frame tells."""
    pixels = np.asarray(Image.open(io.BytesIO(frame.content)).convert("L"))
    return sum(1 << bit for bit in range(6) if pixels[10:38, bit * 10 + 3 : bit * 10 + 7].mean() > 127)


def write(path, codec="libx264", count=COUNT, options=None):
    stream = {"codec": codec, "gop_size": 12, "max_b_frames": 3, "options": options or {}}
    return write_video(path, map(drawn, range(count)), **stream)


CLIPS = {
    "mp4": ("libx264", {}),
    "open.mp4": ("libx264", {"x264-params": "open-gop=1"}),
    "mkv": ("libx264", {}),
    "avi": ("mpeg4", {}),
    "h264.avi": ("libx264", {}),  # FFmpeg's time stamps are the order of decoding, plus one
    "mpeg4.mp4": ("mpeg4", {}),
    "h264": ("libx264", {}),  # raw: no time stamps at all
}


@pytest.fixture(scope="module", params=CLIPS)
def clip(request, tmp_path_factory):
    codec, options = CLIPS[request.param]
    return write(tmp_path_factory.mktemp("clips") / f"clip.{request.param}", codec, options=options)


@pytest.fixture(scope="module")
def mp4(tmp_path_factory):
    return write(tmp_path_factory.mktemp("clips") / "clip.mp4", "mpeg4")


def has_b_frames(path):
    with av.open(str(path)) as container:
        return any(frame.pict_type == av.video.frame.PictureType.B for frame in container.decode(video=0))


def test_frames_of_a_file_have_exact_indexes_in_any_order(clip, monkeypatch):
    assert has_b_frames(clip)
    monkeypatch.setattr(video_files, "CACHE_BYTES", 4 * 3 * WIDTH * HEIGHT)
    source = open_frames(clip)
    assert (source.num_frames, source.size) == (COUNT, (WIDTH, HEIGHT))
    orders = [
        range(COUNT),
        reversed(range(COUNT)),
        np.random.default_rng(0).permutation(COUNT).tolist(),
        [7, 7, 30, 31, 29, 49, 0, 48, 13, 12, 11],
    ]
    for order in orders:
        for index in order:
            frame = source.frame(index)
            assert (frame.index, told(frame)) == (index, index)
    assert source.frame(COUNT) is None
    source.close()
    assert told(source.frame(3)) == 3  # a closed file opens again


def test_a_file_with_too_many_frames_is_read_no_further(clip, monkeypatch):
    """A small file may have millions of frames, which are decoded for hours if they have no time stamps."""
    assert video_files.VideoFrames(clip, most=COUNT).num_frames == COUNT
    counts = []
    check = video_files.VideoFrames._check_count
    monkeypatch.setattr(
        video_files.VideoFrames, "_check_count", lambda frames, count: counts.append(count) or check(frames, count)
    )
    with pytest.raises(video_files.TooManyFramesError, match="more than 7 frames"):
        video_files.VideoFrames(clip, most=7)
    assert max(counts) == 8


@pytest.mark.parametrize(("gone", "early"), [(1, 0), (0, 4)])
def test_packets_without_a_frame_are_no_frames(tmp_path, gone, early):
    """They need the key frame that is gone, or are earlier than the beginning, which an edit list sets."""
    path = tmp_path / "cut.mp4"
    with av.open(str(write(tmp_path / "clip.mp4"))) as container, av.open(str(path), "w") as copy:
        stream = copy.add_stream_from_template(container.streams.video[0])
        packets = [packet for packet in container.demux(video=0) if packet.size]
        for packet in packets[gone:]:
            packet.pts -= early * packet.duration
            packet.dts -= early * packet.duration
            packet.stream = stream
            copy.mux(packet)
    source = open_frames(path)
    frames = source.num_frames
    assert told(source.frame(0)) == COUNT - frames > 1
    source.close()
    video_files.VideoFrames(path, most=frames).close()
    with pytest.raises(video_files.TooManyFramesError):
        video_files.VideoFrames(path, most=frames - 1)


def test_time_stamps_that_are_the_order_of_decoding_are_not_believed(tmp_path, mp4):
    """box.mp4 among the samples of OpenCV has such time stamps."""
    path = tmp_path / "clip.mp4"
    with av.open(str(mp4)) as container, av.open(str(path), "w") as copy:
        stream = copy.add_stream_from_template(container.streams.video[0])
        packets = [packet for packet in container.demux(video=0) if packet.size]
        for time in sorted(packet.pts for packet in packets):
            packet = packets.pop(0)
            packet.stream, packet.pts, packet.dts = stream, time, time
            copy.mux(packet)
    assert has_b_frames(path)
    source = open_frames(path)
    assert source.num_frames == COUNT
    for index in (0, 1, 2, COUNT - 1, 5):
        assert told(source.frame(index)) == index
    source.close()


def test_frames_are_sent_without_loss_or_in_the_quality_that_was_asked_for(mp4):
    exact, small = open_frames(mp4).frame(9), open_frames(mp4, quality=60).frame(9)
    assert exact.content.startswith(b"\x89PNG")
    assert small.content.startswith(b"\xff\xd8")
    with av.open(str(mp4)) as container:
        pixels = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)][9]
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(exact.content))), pixels)
    for quality in (0, 101):
        with pytest.raises(ConfigurationError, match="quality must be 1 to 100"):
            open_frames(mp4, quality=quality)


# --- files that cannot be used ---


def test_files_that_are_no_video_are_one_clear_line(tmp_path, mp4):
    for name, content, words in (
        ("nowhere.mp4", None, "there is no video at"),
        ("empty.mp4", b"", r"empty.mp4 is empty \(0 bytes\)"),
        ("text.mp4", b"no video " * 100, r"text.mp4 cannot be opened as a video: "),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(VideoError, match=words):
            open_frames(tmp_path / name)


def test_a_file_without_frames_is_an_error(tmp_path):
    path = write(tmp_path / "none.avi", "mpeg4", count=0)
    with pytest.raises(VideoError, match=r"none.avi is empty: a video needs at least one frame"):
        open_frames(path)


@pytest.mark.parametrize("name", ["broken.mkv", "broken.mp4"])
def test_of_a_file_that_breaks_off_the_whole_frames_are_read(tmp_path, name):
    path = write(tmp_path / name)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 8 // 10])
    source = open_frames(path)
    assert 10 < source.num_frames < COUNT
    read = [told(source.frame(index)) for index in range(source.num_frames)]
    assert read[:-3] == list(range(len(read) - 3))  # the others may follow a gap
    assert source.frame(COUNT - 1) is None


def test_without_pyav_the_error_says_what_to_install(mp4, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingDependencyError, match=r"video files and cameras need the video extra .*pip install"):
        open_frames(mp4)
    with pytest.raises(MissingDependencyError, match="pip install"):
        open_frames("rtsp://127.0.0.1:9/camera")


# Folders and lists


def test_a_folder_is_read_in_the_natural_order_and_sent_unchanged(tmp_path):
    (tmp_path / "notes.txt").write_text("no frame")
    with pytest.raises(VideoError, match=r"holds no frames: give a folder with image files \(\.jpg, \.jpeg"):
        open_frames(tmp_path)
    for index in (0, 1, 2, 9, 10, 11):
        Image.fromarray(drawn(index)).save(tmp_path / f"frame{index}.jpg", quality=95)
    (tmp_path / ".hidden.jpg").write_bytes(b"no frame")
    source = open_frames(tmp_path)
    assert (source.num_frames, source.size) == (6, (WIDTH, HEIGHT))
    assert [told(source.frame(place)) for place in range(6)] == [0, 1, 2, 9, 10, 11]
    assert source.frame(4).content == (tmp_path / "frame10.jpg").read_bytes()
    assert source.frame(6) is None


def test_a_turned_photograph_has_the_size_that_the_server_sees(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(drawn(1)).save(tmp_path / "0.jpg", exif=exif)
    assert open_frames(tmp_path).size == (HEIGHT, WIDTH)


def test_a_list_may_mix_all_forms_of_images(tmp_path):
    Image.fromarray(drawn(1)).save(tmp_path / "1.png")
    images = [drawn(0), tmp_path / "1.png", Image.fromarray(drawn(2)), Image.fromarray(drawn(3)).convert("L")]
    source = open_frames(images)
    assert [told(source.frame(index)) for index in (3, 0, 1, 2)] == [3, 0, 1, 2]
    array = open_frames(np.stack([drawn(index) for index in range(5)]), quality=90)
    assert (array.num_frames, told(array.frame(4))) == (5, 4)
    assert array.frame(0).content.startswith(b"\xff\xd8")


def test_the_first_frame_is_read_once(monkeypatch):
    read = []
    monkeypatch.setattr(base, "open_image", lambda image: read.append(1) or open_image(image))
    source = open_frames([drawn(0), drawn(1)])
    assert [told(source.frame(index)) for index in (0, 1)] == [0, 1]
    assert len(read) == 2


def test_a_wrong_frame_is_an_error_that_names_it_and_others_are_read(tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    source = open_frames([drawn(0), tmp_path / "bad.jpg", np.zeros((10, 20, 3), np.uint8), drawn(3)])
    with pytest.raises(VideoError, match="frame 2 of the list has 20 x 10 pixels, but the first frame has 64 x 48"):
        source.frame(2)
    with pytest.raises(VideoError, match="frame 1 of the list: the content is not an image"):
        source.frame(1)
    with pytest.raises(VideoError, match="there is no frame -1"):
        source.frame(-1)
    assert told(source.frame(3)) == 3
    with pytest.raises(VideoError, match="frame 0 of the list: there is no image at"):
        open_frames([tmp_path / "nowhere.jpg"])


def test_a_damaged_frame_of_a_file_is_an_error_with_a_remedy(tmp_path):
    path = write_video(tmp_path / "clip.avi", map(drawn, range(4)), codec="mjpeg", pix_fmt="yuvj420p")
    with av.open(str(path)) as container:
        damaged = [packet for packet in container.demux(video=0) if packet.size][2]
    content = bytearray(path.read_bytes())
    content[damaged.pos : damaged.pos + damaged.size] = bytes(damaged.size)
    path.write_bytes(content)
    source = open_frames(path)
    with pytest.raises(
        VideoError, match=r"frame 2 of .*clip.avi cannot be decoded: .* `ffmpeg -i .*clip.avi repaired.mp4`"
    ):
        source.frame(2)
    assert [told(source.frame(index)) for index in (0, 1, 3)] == [0, 1, 3]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "the list is empty"),
        (iter(()), "the stream is empty"),
        (np.zeros((4, 4, 3), np.uint8), r"must be \(T,H,W,3\), not \(4, 4, 3\)"),
        (b"content", "cannot read frames from bytes"),
        (-1, "there is no camera -1"),
        ("http://127.0.0.1:9/clip.mp4", "cannot be opened as a video"),
    ],
)
def test_what_is_no_video_is_one_clear_line(source, message):
    with pytest.raises(VideoError, match=message):
        open_frames(source)


# Streams


def test_a_stream_is_read_when_it_is_asked_and_keeps_its_last_frames():
    taken = []

    def endless():
        index = 0
        while True:
            taken.append(index)
            yield drawn(index)
            index += 1

    source = open_frames(endless(), window=4)
    assert (source.num_frames, source.size, taken) == (None, (WIDTH, HEIGHT), [0])
    assert told(source.frame(9)) == 9
    assert taken == list(range(10))
    assert told(source.frame(6)) == 6
    with pytest.raises(VideoError, match="frame 5 of the stream is gone: a stream keeps its last 4 frames, now 6 to 9"):
        source.frame(5)
    source.close()
    assert source.frame(10) is None
    with pytest.raises(ConfigurationError, match="window must be at least 1"):
        open_frames(endless(), window=0)


def test_a_damaged_frame_ends_a_stream_so_that_no_index_shifts():
    source = open_frames(iter([drawn(0), np.zeros((4, 4, 7)), drawn(2)]))
    with pytest.raises(VideoError, match="frame 1 of the stream: an image array must be"):
        source.frame(1)
    assert source.frame(1) is None
    assert told(source.frame(0)) == 0


def test_an_open_file_and_a_pipe_are_streams(tmp_path):
    path = write(tmp_path / "clip.mkv", "mpeg4")
    with path.open("rb") as file:
        source = open_frames(file)
        assert [told(source.frame(index)) for index in range(COUNT)] == list(range(COUNT))
        assert source.frame(COUNT) is None
        assert source.num_frames is None
        source.close()
