"""A real Label Studio asks the service for masks. It needs 1 GB, so the test uses the one that is installed.

Set LABEL_STUDIO to the program, for example of an environment of its own, or have `label-studio` in PATH.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
from support.conditions import wait_until
from support.programs import answers, running_program
from support.running_service import running_service
from support.tools import CLICK, brushed

from triton_sam.local_server.ports import choose_ports

PROGRAM = os.environ.get("LABEL_STUDIO") or shutil.which("label-studio")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.skipif(PROGRAM is None, reason="there is no label-studio: set LABEL_STUDIO"),
]

USER, PASSWORD = "someone@example.org", "not a secret"
ACCESS = "0123456789abcdef" * 2 + "01234567"
TOKEN = "sesame-open"
CONFIG = """<View><Image name="image" value="$image"/>
<BrushLabels name="tag" toName="image" smart="false"><Label value="cat"/></BrushLabels>
<PolygonLabels name="outline" toName="image" smart="true"><Label value="cat"/></PolygonLabels>
<KeyPointLabels name="point" toName="image" smart="true"><Label value="cat"/></KeyPointLabels></View>"""


@contextlib.contextmanager
def label_studio(folder: Path) -> Iterator[httpx.Client]:
    port = choose_ports("127.0.0.1", {"label-studio": 0})["label-studio"]
    settings = {
        "LABEL_STUDIO_BASE_DATA_DIR": str(folder),
        "LABEL_STUDIO_USERNAME": USER,
        "LABEL_STUDIO_PASSWORD": PASSWORD,
        "LABEL_STUDIO_USER_TOKEN": ACCESS,
        "LABEL_STUDIO_ENABLE_LEGACY_API_TOKEN": "true",
        "ML_BLOCK_LOCAL_IP": "false",  # the service is on this machine
        "SSRF_PROTECTION_ENABLED": "false",
        "COLLECT_ANALYTICS": "false",
        "LATEST_VERSION_CHECK": "false",
    }
    others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(PROGRAM), "start", "--no-browser", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with (
        running_program(command, folder / "log", lambda: answers(f"{url}/health"), 300, env={**others, **settings}),
        httpx.Client(base_url=url, headers={"Authorization": f"Token {ACCESS}"}, timeout=60) as client,
    ):
        yield client


@dataclass(frozen=True)
class Setup:
    """A project of Label Studio with a task and with the service as its model."""

    studio: httpx.Client
    project: int
    task: int
    model: int


@pytest.fixture(scope="module")
def setup(service_triton, images, tmp_path_factory):
    with label_studio(tmp_path_factory.mktemp("studio")) as studio:
        options = {
            "token": TOKEN,
            "adapters": ("label-studio",),
            "label_studio_url": str(studio.base_url),
            "label_studio_token": ACCESS,
        }
        with running_service(service_triton.grpc_url, **options) as service:
            project = _made(studio, "/api/projects", {"title": "tools", "label_config": CONFIG})["id"]
            content = (images / "shapes.jpg").read_bytes()
            studio.post(f"/api/projects/{project}/import", files={"file": ("shapes.jpg", content)}).raise_for_status()
            task = studio.get("/api/tasks", params={"project": project}).json()["tasks"][0]["id"]
            backend = {
                "url": f"{service.url}/label-studio",
                "project": project,
                "is_interactive": True,
                "auth_method": "BASIC_AUTH",
                "basic_auth_user": "anyone",
                "basic_auth_pass": TOKEN,
            }
            added = _made(studio, "/api/ml", backend)
            assert added["readable_state"] == "Connected"
            yield Setup(studio, project, task, added["id"])


def test_a_click_in_the_page_of_label_studio(setup, triton_client, browser):
    """A person signs in, chooses the label of the smart tag, and clicks: Label Studio saves the mask as a draft."""
    url = str(setup.studio.base_url).rstrip("/")
    context = browser.new_context(viewport={"width": 1400, "height": 860})
    context.add_init_script("localStorage.autoAnnotation = localStorage.autoAcceptSuggestions = 'true'")
    try:
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.goto(f"{url}/user/login/")
        page.fill("input[name=email]", USER)
        page.fill("input[name=password]", PASSWORD)
        page.click("button[type=submit]")
        page.wait_for_url(lambda address: "login" not in address)
        page.goto(f"{url}/projects/{setup.project}/data?task={setup.task}")
        stage = page.locator(".konvajs-content").first
        stage.wait_for()
        page.wait_for_timeout(2000)  # the image moves while the window is laid out
        page.get_by_text("cat", exact=True).nth(2).click()  # the label of the smart points is the third one
        page.locator("button[class*=tool_smart]").first.click()
        place = stage.bounding_box()
        x, y = (place[side] + place[name] * at for side, name, at in (("x", "width", 0.25), ("y", "height", 0.3)))
        with page.expect_response("**/interactive-annotating") as waiting:
            page.mouse.click(x, y)
        [sent] = waiting.value.request.post_data_json["context"]["result"]
        drafts = f"/api/tasks/{setup.task}"
        wait_until(lambda: any(each["result"] for each in setup.studio.get(drafts).json()["drafts"]), 60)
        [draft] = [each for each in setup.studio.get(drafts).json()["drafts"] if each["result"]]
    finally:
        context.close()
    point = [sent["value"]["x"] * 8, sent["value"]["y"] * 6]
    assert np.allclose(point, CLICK, atol=4)
    [result] = [each for each in draft["result"] if each["type"] == "brushlabels"]
    assert result["value"]["brushlabels"] == ["cat"]
    assert np.array_equal(brushed(result), triton_client.segment([point], [1])[0].mask)


def _made(studio: httpx.Client, path: str, body: dict) -> dict:
    answer = studio.post(path, json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())
