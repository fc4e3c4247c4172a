"""The page in a real browser: inside of Airflow's own UI, while a write goes on, by keyboard, on a phone, in the dark."""

from __future__ import annotations

import urllib.parse

import pytest
from support.browser import Browser
from support.pages import HOSTILE, LARGE, stage_some

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.state import State, state_of

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]

#: The document with the page: that of Airflow's frame, or the window's own.
PAGE = "(document.querySelector('iframe')?.contentDocument ?? document)"

#: Texts whose colour stands out from what is behind them by less than 4.5 to 1.
FAINT = """(() => {
    const canvas = document.createElement('canvas'); canvas.width = canvas.height = 1;
    const pen = canvas.getContext('2d', {willReadFrequently: true});
    const rgba = (colour) => {
        pen.clearRect(0, 0, 1, 1); pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
        return [...pen.getImageData(0, 0, 1, 1).data];
    };
    const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = rgba(getComputedStyle(at).backgroundColor);
            if (colour[3] === 255) return colour;
        }
        return [255, 255, 255];
    };
    const found = [];
    for (const element of document.querySelectorAll('main *')) {
        const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
        if (!own || !element.checkVisibility()) continue;
        const [a, b] = [light(rgba(getComputedStyle(element).color)), light(behind(element))].sort((x, y) => y - x);
        if ((a + .05) / (b + .05) < 4.5) found.push(`${element.className} ${element.textContent.trim()} ${(a + .05) / (b + .05)}`);
    }
    return found;
})()"""

#: Fields, links and pictures without a name that a screen reader could say.
NAMELESS = """[...document.querySelectorAll('a, button, input:not([type=hidden]), select, [role=img], table th')].filter(
    (element) => !(element.textContent.trim() || element.ariaLabel || element.labels?.[0]?.textContent.trim())
).map((element) => element.outerHTML)"""


@pytest.fixture(scope="module")
def browser(pages):
    with Browser() as browser:
        browser.open(f"{pages.url}/api/v2/version")
        browser.sign_in(pages.url, pages.tokens["admin"])
        yield browser


@pytest.fixture(autouse=True)
def nothing_went_wrong(browser):
    """Nothing failed in the page, and its policy has forbidden nothing."""
    browser.resize(1280, 900)
    browser.prefer("light")
    browser.errors.clear()
    yield
    assert browser.errors == []


def quoted(text):
    return urllib.parse.quote(text, safe="")


def open_checkpoint(browser, pages, key, conn_id="checkpoint_default"):
    drawn = "[...document.querySelectorAll('#grid path')].some((path) => path.getAttribute('d'))"
    browser.open(
        f"{pages.url}/checkpoints/checkpoint?conn_id={conn_id}&key={quoted(key)}", f"document.readyState === 'complete' && {drawn}"
    )


def cells(browser, state):
    """How many splits of a state are drawn."""
    return browser.run(f"({PAGE}.querySelector('#grid path.{state}').getAttribute('d') ?? '').split('M').length - 1")


def test_a_tab_of_the_task_instance_shows_its_checkpoint_in_airflows_own_page(browser, pages):
    tab = f"/dags/shop/runs/{quoted(pages.run_id)}/tasks/stage/plugin/task_checkpoint"
    browser.open(pages.url + tab, f"{PAGE}.querySelector('#grid path.written')?.getAttribute('d')")
    assert "1,200 rows landed in shop.orders" in browser.text()
    assert (cells(browser, "recovered"), cells(browser, "written")) == (5, 7)
    # It sits among Airflow's own tabs.
    assert browser.run("[...document.querySelectorAll('a')].some((link) => link.href.endsWith('/plugin/task_checkpoint'))")


def test_the_navigation_leads_to_all_checkpoints_and_from_there_to_a_run(browser, pages):
    browser.open(f"{pages.url}/plugin/checkpoints", f"{PAGE}.querySelector('table.list')")
    link = f'a[href*="{quoted(pages.run_id)}"][data-airflow]'
    browser.click(link)
    # The frame may not lead its parent elsewhere, so the parent does it itself.
    browser.wait(f"decodeURIComponent(location.pathname) === '/dags/shop/runs/{pages.run_id}'")


def test_the_page_follows_a_write_that_is_killed_and_retried_to_its_commit_without_being_loaded_again(browser, pages):
    world = pages.world
    key = "live/orders"
    attempt = stage_some(world.attempt(world.request(key)), 3)
    open_checkpoint(browser, pages, key)
    browser.run("window.stays = true")
    assert (cells(browser, "written"), cells(browser, "missing")) == (3, 9)
    # The first attempt ends here, as if it had been killed, and the second one begins.
    stage_some(world.attempt(world.request(key)), 4, try_number=2)
    browser.wait("document.querySelector('.saved')?.innerText.includes('3 splits, 300 rows')")
    assert [cells(browser, state) for state in ("recovered", "written", "begun", "missing")] == [3, 4, 0, 5]
    assert "7 of 12 splits are staged." in browser.text()
    stage_some(attempt)
    browser.wait("document.querySelector('.badge').innerText === 'sealed'")
    world.commit(world.attempt(world.request(key)))
    browser.wait("document.querySelector('.badge').innerText === 'committed'")
    assert "1,200 rows landed in shop.orders" in browser.text()
    assert browser.run("window.stays")
    # Nothing can change any more, and nothing is asked for.
    asked = "performance.getEntriesByType('resource').filter((entry) => entry.name.includes('live.json')).length"
    before = browser.run(asked)
    browser.run("new Promise((done) => setTimeout(done, 4000))")
    assert browser.run(asked) == before


def test_nothing_is_asked_for_while_nobody_looks(browser, pages):
    open_checkpoint(browser, pages, "orders/staging")
    asked = "performance.getEntriesByType('resource').filter((entry) => entry.name.includes('live.json')).length"
    browser.run("Object.defineProperty(document, 'hidden', {value: true, configurable: true}), 0")
    browser.run("new Promise((done) => setTimeout(done, 4000))")
    assert browser.run(asked) == 0
    browser.run("delete document.hidden, document.dispatchEvent(new Event('visibilitychange')), 0")
    browser.wait(f"{asked} > 0")


def test_a_store_that_does_not_answer_any_more_is_said_to_be_out_of_date_and_what_was_seen_stays(browser, pages):
    world = pages.world
    stage_some(world.attempt(world.request("live/torn")), 2)
    open_checkpoint(browser, pages, "live/torn")
    header = world.root / "store" / latest(pages, "live/torn").paths.header
    whole = header.read_bytes()
    header.write_text("{")
    browser.wait("!document.querySelector('#stale').hidden")
    assert "This is not up to date" in browser.text()
    assert "2 of 12 splits are staged." in browser.text()
    header.write_bytes(whole)
    browser.wait("document.querySelector('#stale').hidden")
    # The browser notes the answers with 502 as errors.
    assert all("502" in error for error in browser.errors)
    browser.errors.clear()


def latest(pages, key):
    return Checkpoint.latest(pages.world.store, IdempotenceKey(key))


def test_an_action_is_confirmed_and_done_in_airflows_frame(browser, pages):
    stage_some(pages.world.attempt(pages.world.request("live/decided")), 2)
    browser.open(f"{pages.url}/plugin/checkpoints/checkpoints/checkpoint?key=live%2Fdecided", f"{PAGE}.querySelector('a.restart')")
    browser.click("a.restart")
    browser.wait(f"{PAGE}.querySelector('form[method=post] button')")
    assert "is given up with its 2 staged splits" in browser.text()
    assert state_of(latest(pages, "live/decided")) is State.STAGING
    browser.click("form[method=post] button")
    browser.wait(f"{PAGE}.querySelector('[role=status]')?.innerText.includes('Clear the task')")
    assert state_of(latest(pages, "live/decided")) is State.DISCARDED


def test_splits_are_read_with_the_keyboard(browser, pages):
    open_checkpoint(browser, pages, "orders/staging")
    for _ in range(12):
        browser.press("Tab")
        if browser.run("document.activeElement.id") == "grid":
            break
    said = "document.getElementById('split').innerText"
    browser.press("Home")
    browser.wait(f"{said}.includes('staged by attempt 1')")
    assert browser.run(said).startswith("Split 1 of 12: recovered")
    browser.press("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight")
    assert browser.run(said).startswith("Split 6 of 12: written")
    browser.press("End")
    assert browser.run(said).startswith("Split 12 of 12: missing")
    browser.press("ArrowRight", "ArrowLeft")
    assert browser.run(said).startswith("Split 11 of 12: missing")


def test_ten_thousand_splits_are_all_drawn_and_fit(browser, pages):
    for width in (1280, 390):
        browser.resize(width, 900)
        open_checkpoint(browser, pages, LARGE, "large_store")
        assert [cells(browser, state) for state in ("recovered", "written", "begun", "missing")] == [3_250, 3_250, 0, 3_500]
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        assert browser.run("document.querySelectorAll('main *').length") < 400


PAGES = ["", "?q=orders", "checkpoint?key=orders/staging", "checkpoint?key=orders/committed", "checkpoint?key=orders/discarded",
         "action?action=restart&key=orders/staging", "action?action=restart&key=orders/committed", "checkpoint?key=nothing",
         f"checkpoint?key={quoted(HOSTILE)}", "?conn_id=no_such_store"]  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_pages_can_be_read_in_any_light_on_any_screen_and_by_any_reader(browser, pages, path, scheme):
    browser.prefer(scheme)
    for width in (1280, 360):
        browser.resize(width, 800)
        browser.open(f"{pages.url}/checkpoints/{path}")
        assert browser.run("document.documentElement.dataset.theme") == scheme
        assert browser.run(FAINT) == []
        assert browser.run(NAMELESS) == []
        assert browser.run("document.documentElement.scrollWidth <= innerWidth"), width
    assert browser.run("document.querySelectorAll('main').length") == 1
    assert browser.run("document.querySelectorAll('h1').length") == 1
    assert browser.run("document.documentElement.lang") == "en"
    # The browser notes an answer with 404 as an error.
    browser.errors[:] = [error for error in browser.errors if "404" not in error]


def test_markup_in_a_key_does_nothing(browser, pages):
    browser.open(f"{pages.url}/checkpoints/", "document.querySelector('table.list')")
    assert "<script>alert(1)</script>" in browser.text()
    open_checkpoint(browser, pages, HOSTILE)
    assert browser.run("document.querySelector('h1').innerText") == HOSTILE
    # It goes through the script that updates the page, too.
    browser.run("document.querySelector('[data-part=head]').innerHTML = ''")
    browser.wait("document.querySelector('h1')", 10)
    assert browser.run("document.querySelector('h1').innerText") == HOSTILE
    assert browser.run("document.title") != "hacked"
    assert browser.run("document.querySelectorAll('img').length") == 0


def test_the_theme_is_airflows_and_changes_with_it(browser, pages):
    browser.open(f"{pages.url}/plugin/checkpoints", f"{PAGE}.querySelector('table.list')")
    theme = f"{PAGE}.documentElement.dataset.theme"
    behind = f"getComputedStyle({PAGE}.body).backgroundColor"
    own = "getComputedStyle(document.documentElement).backgroundColor"
    assert browser.run(theme) == "light"
    # What the switch in Airflow's menu does.
    browser.run("localStorage.setItem('theme', 'dark'), document.documentElement.classList.replace('light', 'dark'), 0")
    browser.wait(f"{theme} === 'dark'")
    assert browser.run(behind) == browser.run(own)
    # A page of its own remembers what was chosen.
    browser.open(f"{pages.url}/checkpoints/")
    assert browser.run("document.documentElement.dataset.theme") == "dark"
    browser.run("localStorage.removeItem('theme')")
