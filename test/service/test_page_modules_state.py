"""Modules of the page that keep something: the history of objects, what of a video and of a large image is loaded."""

import numpy as np
import pytest

KEPT_STEPS = 50
"""Steps of the history that a stored state holds, see static/scene.js."""
STEPS = ("begin", "point", "box", "label", "duplicate", "move", "remove", "undo", "redo", "view", "store")


def walks(seed, count=40, length=60):
    """Return random sequences of what a user does: [step, number, number]."""
    rng = np.random.default_rng(seed)
    likely = np.array([3, 5, 1, 1, 1, 1, 1, 6, 4, 2, 1], float)
    steps = rng.choice(STEPS, (count, length), p=likely / likely.sum())
    return [[[str(step), *map(int, rng.integers(0, 90, 2))] for step in walk] for walk in steps]


WALK = """(steps, { SCENE }) => {
  let scene = new SCENE();
  const states = [JSON.stringify([scene.objects, scene.activeId])];
  const acts = {
    begin: () => scene.begin(),
    point: (x, y) => scene.current().points.push({ x, y, label: x % 2 }),
    box: (x, y) => (scene.current().box = [x, y, x + 9, y + 9]),
    label: (x) => (scene.current().label = `kind ${x}`),
    duplicate: () => scene.duplicate(scene.current()),
    move: (x, y) => { const all = scene.objects; if (all.length) scene.move(all[x % all.length].id, y % all.length); },
    remove: (x) => { const all = scene.objects; if (all.length) scene.remove(all[x % all.length].id); },
  };
  for (const [step, x, y] of steps) {
    if (step === "undo") scene.undo();
    else if (step === "redo") scene.redo();
    else if (step === "view") scene.view?.(x % 4);
    else if (step === "store") {
      const [state, frame] = [JSON.parse(JSON.stringify(scene.state)), scene.frame];
      scene = new SCENE();
      if (frame) scene.frame = frame;
      scene.restore(state);
    } else scene.change(() => acts[step](x, y));
    const shown = scene.objects.map(({ points, box, ...rest }) => (rest.prompts ? rest : { points, box, ...rest }));
    states.push(JSON.stringify([shown, scene.activeId, scene.canUndo, scene.canRedo]));
  }
  return states.map((text) => JSON.parse(text));
}"""


@pytest.mark.parametrize(("module", "scene"), [("scene", "Scene"), ("video-scene", "VideoScene")])
def test_undo_and_redo_walk_through_the_states_of_objects(modules, module, scene):
    """A list of states and a place in it are the model. A state that is stored and restored keeps the last steps."""
    inputs = walks(1)
    for steps, states in zip(inputs, modules.run(module, WALK.replace("SCENE", scene), inputs), strict=True):
        before = []
        after = []
        now = states[0][:2]
        assert now == [[], None]
        for (step, *_), (objects, active, can_undo, can_redo) in zip(steps, states[1:], strict=True):
            found = [objects, active]
            if step == "undo" and before:
                after.append(now)
                now = before.pop()
            elif step == "redo" and after:
                before.append(now)
                now = after.pop()
            elif step == "store":
                before, after = before[-KEPT_STEPS:], after[-KEPT_STEPS:]
            elif step not in ("undo", "redo", "view"):
                before.append(now)
                after, now = [], found
            assert found == now, step
            assert (can_undo, can_redo) == (bool(before), bool(after)), step
            ids = [each["id"] for each in objects]
            assert len(set(ids)) == len(ids)
            assert active is None or active in ids


def test_a_video_shows_the_prompts_of_each_frame(modules):
    """Points of a frame come back when the user looks at the frame again, and stay out of all others."""
    rng = np.random.default_rng(2)
    inputs = [rng.integers(0, 4, (30, 2)).tolist() for _ in range(40)]
    source = """(steps, { VideoScene }) => {
      const scene = new VideoScene();
      scene.change(() => scene.begin());
      for (const [frame, x] of steps) {
        scene.view(frame);
        scene.change(() => scene.active.points.push({ x, y: frame, label: 1 }));
      }
      const frames = [0, 1, 2, 3].map((frame) => (scene.view(frame), scene.active.points.map(({ x, y }) => [y, x])));
      return [frames, scene.promptedFrames]; }"""
    for steps, (frames, prompted) in zip(inputs, modules.run("video-scene", source, inputs), strict=True):
        assert frames == [[[frame, x] for at, x in steps if at == frame] for frame in range(4)]
        assert prompted == sorted({frame for frame, _ in steps})


def test_objects_have_colours_of_their_own_and_imports_are_one_step(modules):
    colors = modules.run("scene", "(number, { colorOf }) => colorOf(number)", list(range(1, 201)))
    assert len(set(colors[:40])) == 40
    assert all(len(each) == 7 and int(each[1:], 16) >= 0 for each in colors)
    lines = modules.run("scene", "(text, { lineOf }) => lineOf(text)", ["a\nb", "\N{SNAIL}" * 61, None])
    assert lines == ["a b", "\N{SNAIL}" * 60, ""]
    source = """(kinds, { Scene, withObjects }) => {
      const scene = new Scene();
      scene.change(() => scene.begin());
      scene.change(() => scene.gone.push(7));
      scene.undo();
      const first = withObjects(scene.state, kinds.map((label) => ({ label, name: label, rle: {} })));
      const second = withObjects(first, kinds.map((label) => ({ label, name: "", rle: {} })));
      scene.restore(second);
      const found = new Set(second.found.map((item) => item.id));
      const now = scene.objects.map(({ name, label, found: id }) => [name, label, id === null || found.has(id)]);
      const count = [scene.objects.length, found.size];
      scene.undo();
      count.push(scene.objects.length);
      scene.undo();
      const isGone = Math.min(8, ...found) < 8; // redo would delete an object of this number
      return { now, isGone, count: [...count, scene.objects.length], labels: second.labels }; }"""
    for kinds in (["cell", "", "dog"], ["a"], []):
        [found] = modules.run("scene", source, [kinds])
        size = len(kinds)
        numbers = range(2 + size, 2 + 2 * size)
        named = [[kind or f"Object {2 + place}", kind, True] for place, kind in enumerate(kinds)]
        unnamed = [[f"Object {number}", kind, True] for number, kind in zip(numbers, kinds, strict=True)]
        assert found["now"] == [["Object 1", "", True], *named, *unnamed]
        assert not found["isGone"]
        assert found["count"] == [1 + 2 * size, 2 * size, 1 + size, 1]
        assert found["labels"] == [kind for kind in kinds if kind] * 2


def test_a_view_asks_for_its_tiles_and_no_others_a_few_at_a_time(modules):
    rng = np.random.default_rng(5)
    inputs, expected = [], []
    for _ in range(80):
        width, height = rng.integers(1, 9000, 2).tolist()
        levels, count = [], int(rng.integers(1, 6))
        for level in range(count):
            side = 512 * 2**level
            levels.append({"columns": -(-width // side), "rows": -(-height // side)})
        scale = float(2 ** rng.uniform(-2, 5))
        level = min(count - 1, int(np.floor(np.log2(max(1, scale * 1.2)))))
        left, top, right, bottom = shown = [float(value) for value in (*rng.uniform(-500, 6000, 2), 0, 0)]
        right, bottom = left + 1000 * scale, top + 700 * scale
        shown[2:] = [right, bottom]
        wanted = set()
        for each in {level, count - 1}:
            side = 512 * 2**each
            for row in range(levels[each]["rows"]):
                for column in range(levels[each]["columns"]):
                    meets_x = column * side <= right and (column + 1) * side > left
                    if meets_x and row * side <= bottom and (row + 1) * side > top:
                        wanted.add(f"/v1/large/7/levels/{each}/tiles/{column}/{row}?version=a-1")
        expected.append(sorted(wanted))
        inputs.append(
            {
                "info": {"id": 7, "version": "a-1", "tile": 512, "levels": levels, "width": width, "height": height},
                "shown": shown,
                "unit": scale,
            }
        )
    source = """async ({ info, shown, unit }, { Tiles }) => {
      const asked = [];
      let [running, most] = [0, 0];
      globalThis.createImageBitmap = async () => ({ close() {} });
      const fetchTile = async (path) => {
        asked.push(path);
        most = Math.max(most, ++running);
        await null;
        running--;
        return { blob: async () => null };
      };
      const view = { unit, shown: () => shown, middle: () => shown.slice(0, 2), toScreen: (x, y) => [x, y] };
      const tiles = new Tiles(info, fetchTile, () => {}, () => {});
      do {
        tiles.draw({ drawImage() {} }, view, 1);
        await new Promise((done) => setTimeout(done));
      } while (tiles.running || tiles.wanted.length);
      return [asked.sort(), most, tiles.isComplete(view, 1)]; }"""
    for found, wanted in zip(modules.run("large-tiles", source, inputs), expected, strict=True):
        assert found == [wanted, min(6, len(wanted)), True]


def test_tiles_that_failed_for_a_moment_are_fetched_again(modules):
    source = """async (status, { Tiles }) => {
      const later = globalThis.setTimeout;
      globalThis.setTimeout = (act) => later(act);
      globalThis.createImageBitmap = async () => ({ close() {} });
      const [asked, warnings] = [new Map(), []];
      const fetchTile = async (path) => {
        asked.set(path, 1 + (asked.get(path) ?? 0));
        if (asked.get(path) > 2) return { blob: async () => null };
        throw status === "broken" ? new TypeError(status) : Object.assign(new Error(), { status });
      };
      const info = { id: 7, tile: 512, levels: [{ columns: 2, rows: 1 }], width: 1024, height: 512 };
      const view = { unit: 1, shown: () => [0, 0, 1024, 512], middle: () => [0, 0], toScreen: (x, y) => [x, y] };
      const draw = () => tiles.draw({ drawImage() {} }, view, 1);
      const tiles = new Tiles(info, fetchTile, draw, () => warnings.push(status));
      draw();
      for (let wait = 0; wait < 9; wait++) await new Promise((done) => later(done, 2));
      globalThis.setTimeout = later;
      return [Math.max(...asked.values()), warnings.length, tiles.isComplete(view, 1)]; }"""
    expected = {
        **{status: [3, 1, True] for status in (0, 502, 504, "broken")},
        **{status: [3, 0, True] for status in (429, 503)},
        **{status: [1, 2, False] for status in (404, 422)},
    }
    assert modules.run("large-tiles", source, list(expected)) == list(expected.values())


def test_frames_are_loaded_once_the_newest_first_and_a_few_at_a_time(modules):
    rng = np.random.default_rng(7)
    inputs = [rng.integers(0, 30, 60).tolist() for _ in range(30)]
    source = """async (wanted, { Frames }) => {
      const order = [];
      let [running, most] = [0, 0];
      globalThis.createImageBitmap = async (index) => ({ index, close() {} });
      const load = async (index) => {
        order.push(index);
        most = Math.max(most, ++running);
        await new Promise((done) => setTimeout(done));
        running--;
        return index;
      };
      const frames = new Frames(load, 1 << 20);
      const got = await Promise.all(wanted.map((index) => frames.get(index)));
      const closing = new Frames(() => new Promise(() => {}), 1 << 20);
      const waiting = [0, 1, 2, 3, 4].map((index) => closing.get(index).then(() => "came", () => "given up"));
      closing.close();
      const ends = await Promise.all(waiting.slice(3));
      const few = new Frames(load, 1 << 30); // room for the least number of pictures
      for (let index = 100; index < 110; index++) await few.get(index);
      const again = order.splice(order.indexOf(100)).length && order.length;
      for (const index of [109, 102, 101]) await few.get(index);
      const loaded = order.splice(again);
      return { order, most, got: got.map((each) => each.index), ends, aborted: closing.signal.aborted, loaded }; }"""
    for wanted, found in zip(inputs, modules.run("video-frames", source, inputs), strict=True):
        distinct = list(dict.fromkeys(wanted))
        assert found["got"] == wanted
        assert found["most"] == min(3, len(distinct))
        assert found["order"] == [*distinct[:3], *reversed(distinct[3:])]
        assert (found["ends"], found["aborted"]) == (["given up"] * 2, True)
        assert found["loaded"] == [101]  # the last eight pictures are kept


def test_an_edit_that_waits_does_not_change_another_image(modules):
    source = """async (keys, { Edits }) => {
      const [done, warnings] = [[], []];
      const page = { image: { key: keys[0] }, warn: (text) => warnings.push(text) };
      const edits = new Edits(page);
      let letGo;
      void edits.attempt(() => new Promise((go) => (letGo = go)));
      const waiting = edits.attempt(() => done.push(page.image.key));
      await null;
      page.image = { key: keys[1] };
      letGo();
      await waiting;
      return [done, warnings.map((text) => text.includes("changed meanwhile"))]; }"""
    assert modules.run("edits", source, [["a", "a"], ["a", "b"]]) == [[["a"], []], [[], [True]]]


def test_images_that_the_browser_rejects_and_changes_of_another_tab_are_not_lost(modules):
    """Two libraries are two tabs. A file that exceeds the quota aborts its transaction."""
    source = """async (_, { Library }) => {
      const warnings = [];
      const open = async (name) => {
        const library = new Library(() => warnings.push(name));
        return [library, new Map((await library.open()).map((entry) => [entry.key, entry]))];
      };
      const texts = (library, keys) => Promise.all(keys.map(async (key) => (await library.fileOf(key)).text()));
      const put = IDBObjectStore.prototype.put;
      IDBObjectStore.prototype.put = function (value) {
        if (value.file?.name === "large") this.transaction.abort();
        else return put.call(this, value);
      };
      const [first] = await open("first");
      const entries = ["a", "b", "c"].map((key, order) => ({ key, order, state: 0 }));
      for (const entry of entries) await first.add(entry, new File([entry.key], entry.key === "b" ? "large" : "small"));
      for (const entry of entries) await first.save(entry);
      const found = { isSafe: first.isSafe, texts: await texts(first, ["a", "b", "c"]) };

      const [second, seen] = await open("second");
      found.keys = [...seen.keys()];
      await second.save(seen.get("a"), false); // another tab that only shows an image changes nothing
      for (const state of [1, 2]) void first.save(Object.assign(entries[0], { state }));
      await first.save(entries[0]);
      found.before = [...warnings];
      for (const state of [3, 4]) await second.save(Object.assign(seen.get("a"), { state }));
      await second.remove("c");
      await first.save(entries[2]);
      await first.remove("b");
      found.after = [...warnings, first.isSafe, second.isSafe];
      found.stored = [...(await open("third"))[1].values()].map(({ key, state }) => [key, state]);
      found.gone = await first.fileOf("c").catch((problem) => problem.message);
      return found; }"""
    [found] = modules.run("library", source, [None])
    assert (found["isSafe"], found["texts"], found["keys"]) == (False, ["a", "b", "c"], ["a", "c"])
    assert found["before"] == []
    assert found["after"] == ["second", "first", False, False]
    assert found["stored"] == [["a", 2]]
    assert found["gone"] == "its file has been removed in another tab: reload the page"
