"""The page in a real browser, as people use it. `make browser-check` runs this, and says how to get a Chromium."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.gateway.chromium import MISSING, find_chromium
from tests.gateway.serving import RunningGateway

CHROMIUM = find_chromium()
PATIENCE_MS = 120_000  # for what the server has to compute
QUESTION = "Does the Gold plan cover my gym membership?"
MARKUP = "<img src=x onerror=\"document.title='taken'\">"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, gateway: RunningGateway) -> Iterator[Page]:
    """The page, opened with the key; whatever the browser has to complain of fails the test."""
    complaints: list[str] = []
    context = browser.new_context(base_url=gateway.url, viewport={"width": 900, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: request.url.startswith(f"{gateway.url}/") or complaints.append(request.url))
    page.goto("/")
    use_key(page, gateway.key)
    expect(page.get_by_role("button", name=QUESTION)).to_be_visible()
    complaints[:] = [text for text in complaints if "401" not in text]
    yield page
    context.close()
    assert complaints == []


def use_key(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Use this key").click()


def options(page: Page, rounds: int, max_tokens: int) -> None:
    page.get_by_text("Options", exact=True).click()
    page.get_by_role("spinbutton", name="Rounds").fill(str(rounds))
    page.get_by_role("spinbutton", name="Tokens of an answer").fill(str(max_tokens))


def test_a_question_is_answered_in_rounds(page: Page, tmp_path: Path) -> None:
    options(page, rounds=2, max_tokens=6)
    page.get_by_role("button", name=QUESTION).click()
    cards = page.locator(".card")
    expect(page.get_by_role("status")).to_contain_text("Answered in", timeout=PATIENCE_MS)
    expect(cards).to_have_count(2)
    for card in cards.all():
        expect(card.locator("li")).to_have_count(5)
        expect(card.locator(".text")).not_to_be_empty()
        expect(card.locator(".numbers")).to_contain_text("6 written, cut at the limit")
        expect(card).not_to_have_attribute("aria-busy", "true")
    answer = cards.first.locator(".text").inner_text()
    expect(cards.last.locator(".added")).to_have_text(answer)
    expect(page.locator("#load-summary")).to_contain_text("Tokens in the last minute")
    for kind in ("prefill", "decode"):
        expect(page.locator(f"rect.{kind}").first).to_be_attached()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=folder(tmp_path) / f"page-{scheme}.png", full_page=True)


def test_enter_asks_and_stop_stops(page: Page) -> None:
    options(page, rounds=5, max_tokens=512)
    page.get_by_label("Question", exact=True).fill("Tell a long story about every plan.")
    page.keyboard.press("Enter")
    expect(page.locator(".card .text").first).not_to_be_empty(timeout=PATIENCE_MS)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_have_text("Stopped")
    expect(page.get_by_role("button", name="Ask", exact=True)).to_be_enabled()
    expect(page.locator(".working")).to_have_count(0)


def test_markup_from_outside_stays_text(page: Page, tmp_path: Path) -> None:
    file = tmp_path / f"{MARKUP.replace('/', '')}.txt"
    file.write_text(f"{MARKUP} <script>document.title='taken'</script> is what this file says.")
    page.get_by_label("a text file of yours").check()
    page.locator("input[type=file]").set_input_files(file)
    options(page, rounds=1, max_tokens=2)
    page.get_by_label("Question", exact=True).fill(f"What does {MARKUP} say?")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("Answered in", timeout=PATIENCE_MS)
    card = page.locator(".card")
    expect(card.locator("p").first).to_contain_text(MARKUP)
    expect(card.locator("li")).to_contain_text(f"{MARKUP}.txt#1 {MARKUP} <script>")
    assert page.locator("main img, main script").count() == 0
    expect(page).to_have_title("Orthrus: ask in rounds")


def test_a_wrong_key_is_said_and_a_refusal_leaves_the_page_usable(browser: Browser, gateway: RunningGateway) -> None:
    page = browser.new_page(base_url=gateway.url, reduced_motion="reduce")
    page.goto("/")
    expect(page.get_by_label("Key", exact=True)).to_be_focused()
    use_key(page, "wrong")
    expect(page.get_by_text("This key is not the right one")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("alert")).to_have_text("The gateway asks for an API key.")
    page.get_by_label("Question", exact=True).fill("ꙮ" * 1000)  # longer than what the model takes
    page.get_by_role("button", name="Ask", exact=True).click()
    use_key(page, gateway.key)
    expect(page.get_by_role("alert")).to_contain_text("1024", timeout=PATIENCE_MS)
    expect(page.get_by_role("button", name="Ask", exact=True)).to_be_enabled()
    page.close()


def folder(temporary: Path) -> Path:
    """Where pictures of the page go: the folder that ORTHRUS_SCREENSHOTS names, else one that is forgotten."""
    chosen = Path(os.environ.get("ORTHRUS_SCREENSHOTS", temporary))
    chosen.mkdir(parents=True, exist_ok=True)
    return chosen
