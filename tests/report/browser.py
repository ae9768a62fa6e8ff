"""A page in headless Chromium, spoken to through a pipe: real keys, which scripts cannot press."""

import itertools
import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

# What no page needs: pages kept for a way back, a process ready for the next page, and one for each
# site, extensions of the system, and looks for what is new.
FRUGAL = (
    "--disable-features=BackForwardCache,SpareRendererForSitePerProcess,Translate,MediaRouter,"
    "OptimizationHints,IsolateOrigins,site-per-process",
    "--disable-site-isolation-trials", "--renderer-process-limit=1", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps",
    "--disable-sync", "--disable-breakpad",
)  # fmt: skip


class Tab:
    """A page that is open."""

    def __init__(self, requests, answers, numbers=None, unread=None):
        self._requests, self._answers = requests, answers
        self._numbers, self._session = numbers or itertools.count(1), None
        self._unread = bytearray() if unread is None else unread  # of all pages
        self._events = []

    def beside(self, *, own=True):
        """Another page; with cookies of its own, as another person's browser, or the same."""
        other = Tab(self._requests, self._answers, self._numbers, self._unread)
        context = other.send("Target.createBrowserContext") if own else {}
        other.open("about:blank", **context)
        return other

    def send(self, method, **params):
        """The result of a command of the DevTools protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._requests, json.dumps(message).encode() + b"\0")
        while True:
            found = json.loads(self._read())
            if "method" in found:
                self._events.append(found)
            if found.get("id") == number:
                assert "error" not in found, found["error"]
                return found["result"]

    def watch(self):
        """Collect what the page's console and its policies say from now on."""
        for domain in ("Log", "Runtime", "Audits", "Page"):
            self.send(f"{domain}.enable")

    def faults(self):
        """The errors, warnings and violations of a policy since the last call."""
        self.run("1")  # what came before has arrived then
        found = [fault for event in self._events for fault in _faults(event)]
        self._events.clear()
        return found

    def _read(self):
        while b"\0" not in self._unread:
            part = os.read(self._answers, 1 << 16)
            assert part, "Chromium has closed the pipe"
            self._unread += part
        message, _, rest = bytes(self._unread).partition(b"\0")
        self._unread[:] = rest
        return message

    def open(self, address, **context):
        """Attach to a new page of this address and wait until it is loaded."""
        target = self.send("Target.createTarget", url=address, **context)["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.send("Emulation.setFocusEmulationEnabled", enabled=True)  # beside other pages, too
        # A new page begins as an empty one, which is complete at once.
        there = f"location.href === {json.dumps(address)} && document.readyState === 'complete'"
        while not self.run(there):
            time.sleep(0.05)

    def run(self, expression):
        """The value of an expression in the page."""
        found = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key, code):
        """Press a key and let it go."""
        for what in ("rawKeyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent", type=what, key=key, code=key, windowsVirtualKeyCode=code
            )


def _faults(event):
    """What is wrong in an event of the DevTools protocol."""
    params = event["params"]
    if event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
        yield params["entry"]["text"]
    elif event["method"] == "Runtime.exceptionThrown":
        yield params["exceptionDetails"]
    elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
        yield params["args"]
    elif event["method"] == "Audits.issueAdded":
        yield params["issue"]["details"]


@contextmanager
def opened(chromium, address, profile, *options):
    """A tab with the page of this address."""
    (read, requests), (answers, write) = os.pipe(), os.pipe()

    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
               "--remote-debugging-pipe", f"--user-data-dir={profile}", *options, *FRUGAL,
               "about:blank"]  # fmt: skip
    # Chromium reads from 3 and writes to 4; a shell puts the pipe there.
    shell = ["bash", "-c", f'exec "$@" 3<&{read} 4>&{write}', "bash"]
    browser = subprocess.Popen(
        [*shell, *command], pass_fds=(read, write), stderr=subprocess.DEVNULL
    )
    try:
        os.close(read)
        os.close(write)
        tab = Tab(requests, answers)
        tab.open(address)
        yield tab
    finally:
        browser.kill()
        browser.wait(timeout=20)
        os.close(requests)
        os.close(answers)


def until(tab, condition, seconds=120):
    """Wait until an expression is true in the page, whatever it loads meanwhile."""
    end = time.monotonic() + seconds
    while True:
        try:
            if tab.run(condition):
                return
        except AssertionError:  # the page is being replaced
            pass
        assert time.monotonic() < end, tab.run("document.body.innerText")
        time.sleep(0.05)


def goto(tab, address, *, at=""):
    """Open a page; one that leads to another place of the service, there."""
    tab.send("Page.navigate", url=address)
    arrived = f"location.href.endsWith({at or address!r})"
    until(tab, f"{arrived} && document.readyState === 'complete'")


def display(tab, width=1280, height=900, *, dark=False):
    """Show pages in a window of this size, and in the dark if so."""
    mobile = width < 600
    tab.send("Emulation.setDeviceMetricsOverride", width=width, height=height,
             deviceScaleFactor=1, mobile=mobile)  # fmt: skip
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    tab.send("Emulation.setEmulatedMedia", features=[scheme])
