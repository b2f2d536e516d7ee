"""The HTML page: whole in itself, harmless, and with the curves in it."""

import base64
import json
import math
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
from drawn import load, million, written

from daypoint.plots import curves, curves_figure, curves_page, thinning

EVIL = "</script><script>alert(1)</script><!-- __DATA__ & \"'\u2028 <img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """What a browser would make of it: elements, the title, and the content of each script."""

    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.tags, self.scripts, self.title, self._in = [], [], "", None
        self.feed(path.read_text(encoding="utf-8"))
        self.data = json.loads(self.scripts[0])

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self._in = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._in = None

    def handle_data(self, text):
        if self._in == "script":
            self.scripts[-1] += text
        elif self._in == "title":
            self.title += text


def write(tmp_path, runs, metrics=("loss",), **options):
    path = tmp_path / "a.html"
    curves_page.write_page(runs, metrics, path, **options)
    return path


def doubles(text):
    return np.frombuffer(base64.b64decode(text), "<f8")


def test_the_values_are_in_it_to_the_last_digit(tmp_path):
    values = [1 / 3, math.nan, math.inf, 2e-310]
    page = Page(write(tmp_path, [load(written(tmp_path, values))], log=True, smoothing=0.9))
    curve = page.data["runs"][0]["curves"]["loss"]
    assert doubles(curve["values"]).tobytes() == np.array(values).tobytes()
    assert doubles(curve["steps"]).tolist() == [0, 1, 2, 3]
    assert curve["lost"] == {"NaN": 1, "inf": 1}
    assert "means" not in curve
    assert (page.data["log"], page.data["smoothing"]) == (True, 0.9)


def test_a_million_points_are_thinned_with_means_for_smoothing(tmp_path):
    run = million(tmp_path, 314_159)
    page = Page(write(tmp_path, [run]))
    curve = page.data["runs"][0]["curves"]["loss"]
    values = doubles(curve["values"])
    assert len(values) <= curves_page.MOST_POINTS
    assert values.max() == 50.0
    assert curve["total"] == 1_000_000
    assert doubles(curve["means"]["counts"]).sum() == 1_000_000
    assert (tmp_path / "a.html").stat().st_size < 1_000_000


def test_names_from_a_run_are_data_and_never_markup(tmp_path):
    run = written(tmp_path, name=EVIL)
    run.log(**{EVIL: 1.0})
    run.record["attempts"][0]["overrides"] = [f"a={EVIL}"]
    loaded = curves.load(run.files, run.record, address=EVIL, status="FINISHED", metrics=[EVIL])
    honest = Page(write(tmp_path, [load(written(tmp_path, [1.0]))]))
    page = Page(write(tmp_path, [loaded, loaded], [EVIL]))
    assert page.tags == honest.tags
    assert len(page.scripts) == 2
    assert page.scripts[1] == honest.scripts[1]
    assert page.data["metrics"] == [EVIL]
    assert EVIL in page.data["runs"][0]["label"]
    assert "innerHTML" not in page.scripts[1]


def test_a_title_may_have_anything_in_it(tmp_path):
    page = Page(write(tmp_path, [load(written(tmp_path, [1.0], name=EVIL))]))
    assert EVIL in page.title
    assert EVIL in page.data["title"]


def test_nothing_in_it_is_loaded_from_anywhere(tmp_path):
    text = write(tmp_path, [load(written(tmp_path, [1.0]))]).read_text(encoding="utf-8")
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert "default-src 'none'" in text
    for attribute in ("src=", "href=", "url(", "import ", "fetch("):
        assert attribute not in text


def test_a_run_without_values_makes_a_page(tmp_path):
    page = Page(write(tmp_path, [load(written(tmp_path))]))
    assert page.data["runs"][0]["curves"] == {}


def test_many_runs_share_the_room(tmp_path):
    run = million(tmp_path, 5)
    page = Page(write(tmp_path, [run] * curves_figure.MOST_RUNS))
    total = sum(len(doubles(of["curves"]["loss"]["values"])) for of in page.data["runs"])
    assert total <= 14 * 20_000
    assert (tmp_path / "a.html").stat().st_size < 10_000_000


# ---------------------------------------------------------------- in a browser


@pytest.fixture
def opened(tmp_path):
    """Open a page in Chromium; (page, what it asked for and what went wrong)."""
    api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no chromium")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

        def show(path):
            page, events = browser.new_page(viewport={"width": 1000, "height": 800}), []
            page.on("request", lambda request: events.append(request.url))
            page.on("pageerror", lambda error: events.append(str(error)))
            page.on("console", lambda message: message.type == "error" and events.append(message.text))
            page.on("dialog", lambda dialog: (events.append("dialog"), dialog.dismiss()))
            page.goto(path.as_uri())
            page.wait_for_timeout(300)
            assert events.pop(0) == path.as_uri()
            return page, events

        yield show
        browser.close()


def colored(page):
    """How many pixels of the first panel have a colour."""
    return page.evaluate(
        "() => { const c = document.querySelector('canvas'); const d = c.getContext('2d').getImageData(0, 0, c.width, "
        "c.height).data; let n = 0; for (let i = 0; i < d.length; i += 4) n += Math.max(d[i], d[i+1], d[i+2]) - "
        "Math.min(d[i], d[i+1], d[i+2]) > 60; return n; }"
    )


@pytest.mark.browser
def test_in_a_browser_it_draws_toggles_zooms_and_tells_values(tmp_path, opened):
    runs = [load(written(tmp_path, [scale / (1 + i) for i in range(100)])) for scale in (1.0, 2.0)]
    page, events = opened(write(tmp_path, runs))
    both = colored(page)
    assert both > 200
    page.locator("#runs button").first.click()
    page.wait_for_timeout(100)
    assert 0 < colored(page) < both
    page.locator("#runs button").last.click()
    page.wait_for_timeout(100)
    assert colored(page) == 0
    page.locator("#runs button").first.click()
    page.locator("#runs button").last.click()
    box = page.locator("canvas").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 100)
    page.wait_for_timeout(100)
    tip = page.locator("#tip").inner_text()
    assert "step" in tip
    step = int(tip.split("step ")[1].split()[0])
    assert f"{1 / (1 + step):.7g}" in tip
    before = page.evaluate("JSON.stringify(rangeX())")
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 150, box["y"] + 105, steps=4)
    page.mouse.up()
    low, high = page.evaluate("rangeX()")
    assert 45 < low < 55
    assert 58 < high < 75
    page.mouse.dblclick(box["x"] + 400, box["y"] + 100)
    assert page.evaluate("JSON.stringify(rangeX())") == before
    page.locator("#log").check()
    page.locator("#smooth").fill("25")
    page.wait_for_timeout(100)
    assert colored(page) > 200
    assert page.locator("#weight").inner_text() == "0.90"
    assert events == []


@pytest.mark.browser
def test_in_a_browser_an_evil_name_does_nothing(tmp_path, opened):
    run = load(written(tmp_path, [1.0, 0.5], name=EVIL))
    page, events = opened(write(tmp_path, [run, run]))
    assert EVIL.replace("\u2028", "")[:20] in page.locator("#runs").inner_text()
    assert colored(page) > 20
    assert events == []


@pytest.mark.browser
def test_in_a_browser_smoothing_of_a_thinned_curve_is_that_of_all_its_points(tmp_path, opened):
    run = million(tmp_path, 314_159)
    page, events = opened(write(tmp_path, [run], smoothing=0.9999))
    steps, values = (
        np.array(page.evaluate(f"Array.from(smoothed(data.runs[0].curves.loss).{name})"))
        for name in ("steps", "values")
    )
    exact = thinning.smooth(run.curves["loss"].values, 0.9999)[steps.astype(int)]
    assert np.abs(values - exact).max() < 0.01
    assert events == []
