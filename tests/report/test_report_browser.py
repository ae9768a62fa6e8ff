"""The page in headless Chromium: no console message, nothing wider than the window."""

import html
import re
import shutil
import subprocess

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=5000",
]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

# Windows have a least width, frames have not: the page is measured in a frame.
FRAME = """<!doctype html><title>frame</title><body>
<iframe style="border:0;width:{width}px;height:900px" srcdoc="{page}"></iframe>
<script>
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => {{
  const root = frame.contentDocument.documentElement;
  const wide = [...root.querySelectorAll("main *, header *, footer *")].filter(
    (e) => !e.closest(".scroll") && e.getBoundingClientRect().right > {width} + 0.5);
  document.body.dataset.result = [root.scrollWidth, wide.length,
    root.querySelectorAll("img").length,
    [...root.querySelectorAll("img")].filter((i) => !i.naturalWidth).length,
    frame.contentDocument.title].join("|");
}});
</script>"""


def dump(path, profile, *flags):
    command = [CHROMIUM, *FLAGS, *flags, f"--user-data-dir={profile}", "--dump-dom", path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_overflows(page, tmp_path, width):
    path = tmp_path / "frame.html"
    path.write_text(FRAME.format(width=width, page=html.escape(page)), encoding="utf-8")
    done = dump(path, tmp_path / "profile", "--window-size=1500,1000")
    result = re.search(r'data-result="([^"]*)"', done.stdout)
    assert result, done.stderr[-2000:]
    scroll_width, wide, images, broken, title = html.unescape(result[1]).split("|")
    assert int(scroll_width) <= width
    assert wide == broken == "0"
    assert int(images) > 8
    assert "owned" not in title


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_opens_in_silence(written, tmp_path, dark):
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    done = dump(written, tmp_path / "profile", scheme)
    assert "</html>" in done.stdout
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
