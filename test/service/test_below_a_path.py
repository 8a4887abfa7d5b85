"""The service behind a real nginx that adds a path: the page, its WebSocket, the REST API, and other tools."""

import contextlib
import os

import httpx
import pytest
from support.conditions import PATIENCE, wait_until
from support.nginx_proxy import NGINX, free_ports, needs_nginx, running_nginx
from support.running_service import running_service
from support.tools import CLICK, TOOLS, base64_of

from triton_sam.errors import ConfigurationError
from triton_sam.service.adapters.registry import ADAPTERS
from triton_sam.service.middleware import HeadRequests
from triton_sam.service.settings import ServiceSettings

CONFIG = """
{user} worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ }}
http {{
  access_log off; client_max_body_size 64m;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
  server {{
    listen 127.0.0.1:{port};
    proxy_http_version 1.1;
    proxy_set_header Host $http_host;
    proxy_set_header Upgrade $http_upgrade;
    proxy_set_header Connection $connection_upgrade;
    location /taken/off/ {{ proxy_pass {url}/; }}
    location /left/on/ {{ proxy_pass {rooted}; }}
  }}
}}
"""
PATHS = ("/taken/off", "/left/on")
"""nginx takes the first path off, and leaves the second one on, which the service knows by --root-path."""


@pytest.fixture(scope="module")
def proxied(service_triton, tmp_path_factory):
    """The URL of an nginx before two services."""
    from support.large_images import draw, write_tiff

    if NGINX is None:
        pytest.skip("no nginx program (Debian: apt install nginx-light)")
    folder = tmp_path_factory.mktemp("nginx")
    (folder / "slides").mkdir()
    write_tiff(folder / "slides" / "slide.tif", draw([(100, 100, 400, 300)], (800, 600)), levels=1)
    options = {"adapters": tuple(ADAPTERS), "large_images": str(folder / "slides")}
    (port,) = free_ports(1)
    with contextlib.ExitStack() as held:
        url = held.enter_context(running_service(service_triton.grpc_url, **options)).url
        rooted = held.enter_context(running_service(service_triton.grpc_url, root_path=PATHS[1], **options)).url
        config = folder / "nginx.conf"
        user = "user root;" if os.geteuid() == 0 else ""  # the folder belongs to the user of the test
        config.write_text(CONFIG.format(user=user, folder=folder, port=port, url=url, rooted=rooted))
        held.enter_context(running_nginx(config, port))
        yield f"http://127.0.0.1:{port}"


@needs_nginx
@pytest.mark.parametrize("path", PATHS)
def test_the_rest_api_and_every_tool(proxied, picture, path):
    with httpx.Client(base_url=proxied + path, timeout=PATIENCE) as http:
        uploaded = http.post("/v1/images", files={"image": picture})
        assert uploaded.status_code == 201, uploaded.text
        assert http.get("/v1/images/").status_code in (307, 405)
        assert http.post("/v1/images/" + uploaded.json()["id"] + "/segment", json={"points": [CLICK]}).json()["masks"]
        assert set(TOOLS) == set(ADAPTERS)
        for tool in TOOLS.values():
            answer = http.post(tool.path, json=tool.click(base64_of(picture)), headers=tool.headers)
            assert tool.mask(answer.json(), (600, 800)).any(), answer.text


@needs_nginx
def test_addresses_in_answers_have_the_path_that_the_service_knows(proxied, picture):
    url = proxied + PATHS[1]
    with httpx.Client(timeout=PATIENCE, follow_redirects=True) as http:
        uploaded = http.post(f"{url}/v1/images", files={"image": picture})
        assert http.get(httpx.URL(url).join(uploaded.headers["location"])).json()["id"] == uploaded.json()["id"]
        assert http.get(f"{url}/openapi.json").json()["servers"] == [{"url": PATHS[1]}]
        assert http.get(f"{url}/sam/version").status_code == 200  # it has a slash at its end
        assert http.get(url).headers["content-type"].startswith("text/html")


@needs_nginx
@pytest.mark.parametrize("path", [PATHS[0], pytest.param(PATHS[1], marks=pytest.mark.slow)])
def test_the_page_its_api_and_the_page_of_slides(browser, proxied, images, path):
    from support.running_browser import open_page

    with open_page(browser, f"{proxied}{path}/") as page:
        page.open(images / "shapes.jpg")
        page.page.mouse.move(*page.at(*CLICK))  # a preview comes by the WebSocket
        page.wait("tritonSam.stats.hover.length > 0")
        page.click(*CLICK)
        page.settled()
        assert page.download("#save-mask")[1].startswith(b"\x89PNG")
        page.page.click("text=Slides and maps")
        page.wait("globalThis.tritonSam?.image?.name === 'slide.tif'")
        assert page.page.url.startswith(f"{proxied}{path}/large")
        page.page.click("text=API")
        page.page.wait_for_selector("details summary")
        assert f"curl -s {proxied}{path}/v1/models" in page.page.text_content("main")
        models = page.page.locator("details", has=page.page.get_by_text("List models", exact=True))
        if models.get_attribute("open") is None:
            models.locator("summary").click()
        models.get_by_text("Try it here").click()
        models.get_by_text("Send").click()
        wait_until(lambda: '"sam2"' in models.locator(".answer").inner_text())
        page.page.click(".brand")
        page.ready()
        assert page.page.url == f"{proxied}{path}/"


@pytest.mark.parametrize("path", ["sam", "/", "/sam/", "/a b", "/sam?x", "//x"])
def test_paths_that_are_none(path):
    with pytest.raises(ConfigurationError, match="--root-path"):
        ServiceSettings(root_path=path)


def test_head_answers_as_get_without_the_body(service, image):
    """Monitors, proxies and link checkers ask by HEAD."""
    paths = ["/", "/docs", "/openapi.json", "/favicon.ico", "/static/app.js", "/static/samples/shapes.jpg", "/health"]
    paths += ["/metrics", "/models", "/v1/models", f"/v1/images/{image['id']}", f"/v1/images/{image['id']}/content"]
    paths += [f"/v1/images/{image['id']}/preview", "/new_session_id", "/live", "/nowhere", f"/v1/images/{'0' * 32}"]
    described = service.http.get("/openapi.json").json()["paths"]
    assert {path.split("{")[0] for path, verbs in described.items() if "get" in verbs} <= {
        *paths, *(path.rpartition(image["id"])[0] for path in paths), "/v1/videos/",
    }  # fmt: skip
    for path in paths:
        head, get = service.http.head(path), service.http.get(path)
        assert (head.status_code, head.content) == (get.status_code, b""), path
        assert head.headers["content-type"] == get.headers["content-type"], path
    assert service.http.head("/prediction").status_code == 405
    counted = service.http.get("/metrics").text
    assert 'requests_total{method="HEAD",route="/health",status="200"}' in counted


@pytest.mark.anyio
async def test_head_stays_in_the_scope_of_the_server():
    """uvicorn reads the method there while it sends the response."""
    scope = {"type": "http", "method": "HEAD"}

    async def app(asked, *_):
        assert (asked["method"], scope["method"]) == ("GET", "HEAD")
        asked["route"] = "/health"

    await HeadRequests(app)(scope, None, None)
    assert scope == {"type": "http", "method": "HEAD", "route": "/health"}
