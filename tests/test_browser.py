"""The report page in a real browser (Chromium without a window), driven by the DevTools protocol over a pipe."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time

import pytest

from skiptrain_plugin.results.report import build, write
from tests.records import constrained_set, grid_set, write_record

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "chrome-headless-shell")
BROWSER = next((path for path in map(shutil.which, NAMES) if path), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this computer")

OVERFLOW = """(() => {
  const page = document.documentElement, bad = [];
  if (page.scrollWidth > page.clientWidth) bad.push('page is ' + page.scrollWidth + ' wide');
  for (const e of document.querySelectorAll('body *')) {
    if (!e.closest('.scroll, pre, svg') && e.getBoundingClientRect().right > page.clientWidth + 1) {
      bad.push(e.tagName + '.' + e.className);
    }
  }
  return bad;
})()"""
PLACES = """(() => {
  const data = JSON.parse(document.getElementById('values').textContent);
  return [...document.querySelectorAll('.panel')].map(panel => {
    const svg = panel.querySelector('svg'), scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    const values = data[panel.dataset.values], hits = values.hits;
    return [0, hits.length >> 1, hits.length - 1].map(i => [hits[i][0] * scale, hits[i][1] * scale, hits[i][2]]);
  });
})()"""
POINT = """(index => {
  const panel = document.querySelectorAll('.panel')[index], svg = panel.querySelector('svg');
  svg.scrollIntoView({block: 'center'});
  const box = svg.getBoundingClientRect();
  return [box.left, box.top, box.width, box.height];
})(%d)"""
TIP = """(index => {
  const panel = document.querySelectorAll('.panel')[index], tip = panel.querySelector('.tip');
  const box = tip.getBoundingClientRect(), outer = panel.getBoundingClientRect();
  return {
    shown: !tip.hidden && box.width > 0,
    lines: [...tip.children].map(row => row.textContent),
    inside: box.left >= outer.left - 1 && box.right <= outer.right + 1,
  };
})(%d)"""


class Browser:
    """One page of a browser; ``errors`` collects everything the page or the network complains of."""

    def __init__(self, profile):
        their_input, our_output = os.pipe()
        our_input, their_output = os.pipe()
        high = [fcntl.fcntl(number, fcntl.F_DUPFD, 50) for number in (their_input, their_output)]

        def give_pipes():
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [
                *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--no-first-run", "--hide-scrollbars", f"--user-data-dir={profile}", "--remote-debugging-pipe"),
                "about:blank",
            ],
            preexec_fn=give_pipes,
            pass_fds=(3, 4),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number in (their_input, their_output, *high):
            os.close(number)
        self._out, self._in = our_output, our_input
        self._rest, self._number, self._session = b"", 0, None
        self.errors, self._loaded = [], False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        with contextlib.suppress(OSError, AssertionError):
            self._session = None
            self.call("Browser.close")
        os.close(self._out)
        os.close(self._in)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def call(self, method, **parameters):
        """Calls a DevTools method and waits for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self):
        limit = time.monotonic() + 40
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0, limit - time.monotonic()))
            assert ready, "the browser does not answer"
            read = os.read(self._in, 1 << 20)
            assert read, "the browser has ended"
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method, parameters):
        if method == "Runtime.exceptionThrown":
            self.errors.append(parameters["exceptionDetails"])
        elif method == "Runtime.consoleAPICalled":
            self.errors.append(parameters["args"])
        elif method == "Log.entryAdded":
            self.errors.append(parameters["entry"])
        elif method == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith(("file:", "data:")):
            self.errors.append(parameters["request"]["url"])
        elif method == "Page.loadEventFired":
            self._loaded = True

    def open(self, path, width, height=844, dark=False):
        """Opens a file in a window of that size."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._next()

    def run(self, script):
        """The value of a script."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def move(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key):
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, whole=True):
        """PNG bytes of the page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    one = Browser(tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page with every kind of figure, and one whose record tries to inject markup."""
    root = tmp_path_factory.mktemp("runs")
    constrained_set(root / "a")
    grid_set(root / "b")
    write_record(root / "c", "skiptrain", settings=["RUN.test_after=2"], rounds=24)
    write(build([root / "a", root / "b", root / "c"]), root / "report")
    evil = "</script><script>window.broken = true</script><img src=x onerror='window.broken = true'>"
    write_record(root / "evil" / "dpsgd", "dpsgd", title=evil, info={"command": ["skiptrain", evil], "reason": evil})
    write_record(root / "evil" / "skiptrain", "skiptrain", title=evil, stop=10)
    write(build([root / "evil"]), root / "evil-report")
    return root / "report" / "report.html", root / "evil-report" / "report.html"


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)], ids=["wide-light", "phone-dark"])
def test_page_shows_everything_and_every_value_when_pointed_at(browser, pages, width, dark):
    browser.errors.clear()
    browser.open(pages[0], width, dark=dark)
    assert browser.run("window.innerWidth") == width
    assert browser.run("matchMedia('(prefers-color-scheme: dark)').matches") is dark
    assert browser.run(OVERFLOW) == []
    places = browser.run(PLACES)
    assert len(places) > 12
    for index, hits in enumerate(places):
        left, top, wide, high = browser.run(POINT % index)
        assert wide > 250
        assert high > 60
        for x, y, lines in hits:
            browser.move(left + x, top + y)
            tip = browser.run(TIP % index)
            assert tip == {"shown": True, "lines": lines, "inside": True}
    browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.run(OVERFLOW) == []
    assert browser.run("[...document.images].every(i => i.naturalWidth > 0)") is True
    assert browser.errors == []
    assert len(browser.screenshot()) > 20_000


def test_values_by_keyboard_and_colours_of_the_dark(browser, pages):
    browser.errors.clear()
    browser.open(pages[0], 390, dark=False)
    light = browser.run("getComputedStyle(document.body).backgroundColor")
    browser.open(pages[0], 390, dark=True)
    assert browser.run("getComputedStyle(document.body).backgroundColor") != light
    browser.run("document.querySelector('.panel svg').focus()")
    first = browser.run(TIP % 0)
    assert first["shown"]
    browser.press("ArrowRight")
    second = browser.run(TIP % 0)
    assert second["shown"]
    assert second["lines"] != first["lines"]
    browser.press("Escape")
    assert not browser.run(TIP % 0)["shown"]
    assert browser.errors == []


def test_markup_in_a_record_stays_text(browser, pages):
    browser.errors.clear()
    browser.open(pages[1], 390)
    assert browser.run("window.broken") is None
    assert browser.run("document.images.length") == 0
    assert browser.run("document.scripts.length") == 2
    assert "<script>window.broken" in browser.run("document.querySelector('header').textContent")
    assert browser.run(OVERFLOW) == []
    assert browser.errors == []
