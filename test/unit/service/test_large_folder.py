"""Open files of large images: a file stays open while anybody reads it, and none stays open that nobody can read."""

import asyncio
import contextlib
import random
import threading
import time
from types import SimpleNamespace

import pytest

from triton_sam.service import background
from triton_sam.service.large import folder as module
from triton_sam.service.large.folder import KEPT, LargeFolder

FILES, USERS = KEPT + 8, 1000


class Opened:
    """An open file."""

    all: list["Opened"]
    dice = random.Random(4)

    def __init__(self, path):
        time.sleep(self.dice.random() / 500)  # in a thread, in an order that nobody knows
        self.is_closed = False
        self.all.append(self)

    def close(self):
        assert not self.is_closed
        self.is_closed = True


class Users:
    """Users who open files, some of whom go away at any moment, while files are replaced."""

    def __init__(self, folder, ids, paths):
        self.folder, self.ids, self.paths = folder, ids, paths
        self.dice = random.Random(3)
        self.left = iter(range(USERS))

    def some(self, each):
        """Return one of these, mostly one of the first."""
        return each[int(len(each) * self.dice.random() ** 4)]

    async def use(self, image_id):
        async with self.folder.image(image_id) as (_, image):
            for _ in range(self.dice.randrange(5)):
                await asyncio.sleep(0)
                assert not image.is_closed

    async def come(self):
        for _ in self.left:
            if self.dice.random() < 0.5:
                self.some(self.paths).write_bytes(bytes(self.dice.randrange(5, 5000)))
            task = asyncio.create_task(self.use(self.some(self.ids)))
            if self.dice.random() < 0.5:
                for _ in range(self.dice.randrange(100)):
                    await asyncio.sleep(0)
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.mark.anyio
async def test_files_that_many_users_open_replace_and_give_up(tmp_path, monkeypatch):
    monkeypatch.setattr(Opened, "all", [], raising=False)
    monkeypatch.setattr(module, "open_large_image", Opened)
    paths = [tmp_path / f"{number}.tif" for number in range(FILES)]
    for path in paths:
        path.write_bytes(b"II*\0")

    folder = LargeFolder(str(tmp_path), SimpleNamespace())
    users = Users(folder, [each.id for each in await folder.names()], paths)
    assert len(users.ids) == FILES
    await asyncio.gather(*(users.come() for _ in range(20)))
    await background.wait()  # those who went away have left files that still open
    await users.use(users.ids[0])
    assert sum(not each.is_closed for each in Opened.all) <= KEPT
    folder.close()
    assert all(each.is_closed for each in Opened.all)


@pytest.mark.anyio
async def test_a_user_who_goes_away_while_a_file_opens(tmp_path, monkeypatch):
    """The next user of the file waits for it: it is not opened twice, by two threads."""
    monkeypatch.setattr(Opened, "all", [], raising=False)
    began, go_on = threading.Event(), threading.Event()

    def slowly(path):
        began.set()
        assert go_on.wait(60)
        return Opened(path)

    monkeypatch.setattr(module, "open_large_image", slowly)
    (tmp_path / "a.tif").write_bytes(b"II*\0")

    folder = LargeFolder(str(tmp_path), SimpleNamespace())
    users = Users(folder, [each.id for each in await folder.names()], [])
    first = asyncio.create_task(users.use(users.ids[0]))
    assert await asyncio.to_thread(began.wait, 60)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    began.clear()
    second = asyncio.create_task(users.use(users.ids[0]))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not began.wait(0.05)
    go_on.set()
    await second
    folder.close()
    assert [each.is_closed for each in Opened.all] == [True]
