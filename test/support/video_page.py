"""Steps on the page's video mode."""

CANVAS_FITS = """(() => { const canvas = document.getElementById("canvas");
    return Math.abs(canvas.getBoundingClientRect().height * devicePixelRatio - canvas.height) < 1; })()"""


def open_clip(page, path):
    page.page.set_input_files("#file", path)
    page.wait("tritonSam.video.isOpen && document.getElementById('busy').hidden")
    page.wait(CANVAS_FITS)  # the timeline is laid out


def shown(page):
    return page.page.evaluate("tritonSam.scene.frame")


def go_to(page, frame):
    page.page.evaluate(f"tritonSam.video.goTo({frame})")
    page.wait(f"tritonSam.scene.frame === {frame}")


def segmented(page):
    """Wait until every prompt on the page has its mask from the service."""
    page.wait("""tritonSam.scene.objects.every((o) => Object.keys(o.prompts)
        .every((frame) => tritonSam.video.masks.maskOf(o, Number(frame))))""")


def track(page, direction="forward"):
    before = page.page.evaluate("tritonSam.video.ended")
    page.page.click(f"#track-{direction}")
    page.wait(f"tritonSam.video.ended > {before}")


def covered(page, object_index=0):
    """Return the frames with a mask as ranges."""
    return page.page.evaluate(f"tritonSam.video.masks.rangesOf(tritonSam.scene.objects[{object_index}])")
