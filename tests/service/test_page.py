"""The page: what it shows, to whom, and that a browser can use it."""

import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from service_requests import INFER, body
from starlette.testclient import TestClient

from conftest import Place
from mapl.errors import LedgerError
from mapl.online.panel import Panel
from mapl.service.chart import answers_over_time
from mapl.service.tokens import Tokens

VOID = {"meta", "link", "input", "line", "polyline", "meter"}


class Checker(HTMLParser):
    """Fails on tags that do not close, and on ids that occur twice."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        names = dict(attrs)
        assert not {"style", "onclick"} & set(names), tag
        self.ids += [names["id"]] if "id" in names else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def page(client: TestClient, path: str = "/", **more: Any) -> str:
    found = client.get(path, headers={"accept": "text/html"}, **more)
    checker = Checker()
    checker.feed(found.text)
    assert checker.open == []
    assert len(set(checker.ids)) == len(checker.ids)
    assert "<script" not in found.text
    policy = found.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    return found.text


def fields(text: str, name: str) -> dict[str, str]:
    """Return the form of a panel, as a browser would send it."""
    form = text.partition(f'action="/ask/{name}')[2].partition("</form>")[0]
    return dict(re.findall(r'name="(\w+)"[^>]* value="([^"]*)"', form))


def test_the_page_shows_budgets_panels_and_answers(client: TestClient) -> None:
    text = page(client)
    assert "Epsilon left" in text
    assert "Nothing" not in text
    for name in ("triage", "second", "model"):
        assert f'action="/ask/{name}' in text
    client.post(INFER.format("second"), json=body([4, -4]))
    assert "asked second" in page(client)
    assert "panel, dissent, 300 teachers (LogisticRegression)" in page(client)


def test_a_record_may_be_asked_about_by_hand(client: TestClient) -> None:
    form = fields(page(client), "second") | {"c0": "4", "c1": "York"}
    found = client.post("/ask/second", data=form).text
    assert re.search(r"Label: <strong>yes</strong>|No label", found)
    assert 'value="York"' in found
    again = client.post("/ask/second", data=form).text  # reloaded: the same answer
    assert (
        found.partition('role="status"')[2][:90]
        == (again.partition('role="status"')[2][:90])
    )
    wrong = client.post("/ask/second", data={**form, "c0": "four", "id": ""})
    assert wrong.status_code == 400
    assert "takes numbers" in wrong.text
    long = client.post("/ask/second", data={**form, "id": "x" * 201})
    assert long.status_code == 400
    free = client.post("/ask/model", data={"c0": "-4", "c1": "<b>"}).text
    assert "Label: <strong>no</strong>" in free
    assert "<b>" not in free
    missing = client.post("/ask/none", data={}, headers={"accept": "text/html"})
    assert missing.status_code == 404


def test_an_unclear_record_gets_no_label(client: TestClient) -> None:
    seen = set()
    for i in range(12):
        form = {"c0": str(-0.34 + i / 1000), "c1": "Bath", "id": f"unclear-{i}"}
        seen.add("No label" in client.post("/ask/triage", data=form).text)
    assert True in seen


def test_signing_in_and_out(client: TestClient) -> None:
    tokens = Tokens()
    ann = tokens.create(scope="analyst", datasets=["d"], name="ann")
    chief = tokens.create(scope="operator", datasets=["d"], name="chief")
    assert "Sign in" in page(client)
    assert client.get("/").status_code == 401
    wrong = client.post("/sign-in", data={"token": "nonsense"})
    assert (wrong.status_code, "not valid" in wrong.text) == (401, True)
    done = client.post("/sign-in", data={"token": ann}, follow_redirects=False)
    cookie = done.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secure" not in cookie
    text = page(client)
    assert "ann (analyst)" in text
    assert "Audit log" not in text
    client.post("/sign-out")
    assert client.get("/").status_code == 401
    client.post("/sign-in", data={"token": chief})
    assert "Audit log" in page(client)
    safe = TestClient(client.app, base_url="https://localhost")
    done = safe.post("/sign-in", data={"token": ann}, follow_redirects=False)
    assert "secure" in done.headers["set-cookie"].lower()


def test_files_of_the_page(client: TestClient) -> None:
    assert client.get("/style.css").headers["content-type"].startswith("text/css")
    assert client.get("/icon.svg").headers["content-type"] == "image/svg+xml"
    assert client.get("/secret.txt").status_code == 404


def test_a_panel_that_cannot_be_read_is_shown_as_closed(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Panel) -> None:
        raise LedgerError("gone")

    monkeypatch.setattr(Panel, "show", fail)
    assert "closed" in page(client)


def test_a_picture_needs_two_moments() -> None:
    def note(second: int, queries: int, abstained: int) -> dict[str, Any]:
        at = f"2030-01-0{1 + second // 60}T10:00:{second % 60:02}+00:00"
        return {"asked_at": at, "queries": queries, "abstained": abstained}

    assert answers_over_time([]) is None
    assert answers_over_time([note(1, 2, 0), note(1, 5, 1)]) is None
    found = answers_over_time([note(1, 2, 0), note(21, 5, 1)])
    assert found is not None
    assert (found["n_labels"], found["n_withheld"], found["most"]) == (6, 1, 6)
    assert found["first"] == "10:00:01"
    assert found["labels"].split()[-1] == "412.0,14.0"
    days = answers_over_time([note(1, 2, 0), note(71, 5, 1)])
    assert days is not None
    assert days["last"] == "2030-01-02 10:00"


# In a real browser --------------------------------------------------------------------


@pytest.fixture
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    found = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if not all(found.values()):
        pytest.skip("Chromium is not installed")
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.binary_location = found["chromium"]
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(found["chromedriver"])
    made = webdriver.Chrome(options=options, service=service)
    yield made
    made.quit()


def test_the_page_in_a_browser(
    browser: Any, running: Any, place: Place, tmp_path: Path
) -> None:
    """With the keyboard alone: sign in, find the form, ask, read the answer."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    token = Tokens().create(scope="operator", datasets=["d"], name="chief")
    browser.get(running.url)
    assert "Sign in" in browser.title
    browser.find_element(By.ID, "token").send_keys(token, Keys.ENTER)
    assert "chief (operator)" in browser.page_source
    body_ = browser.find_element(By.TAG_NAME, "body")
    body_.send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "Skip to content"
    summary = browser.find_elements(By.TAG_NAME, "summary")[1]
    summary.send_keys(Keys.ENTER)
    form = browser.find_elements(By.CSS_SELECTOR, "form.record")[1]
    first = form.find_element(By.CSS_SELECTOR, "input[name=c0]")
    label = browser.find_element(
        By.CSS_SELECTOR, f"label[for='{first.get_attribute('id')}']"
    )
    assert label.text == "a"
    first.send_keys("4", Keys.TAB, "York", Keys.TAB, Keys.ENTER)
    assert "Label: yes" in browser.find_element(By.ID, "result").text
    for width in (390, 1280):
        browser.set_window_size(width, 900)
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        shown = browser.execute_script("return document.documentElement.clientWidth")
        assert wide <= shown
    meter = browser.find_element(By.TAG_NAME, "meter")
    assert meter.get_attribute("aria-label") == "Epsilon spent of d"
    errors = [one["message"] for one in browser.get_log("browser")]
    assert len(errors) == 1  # the page to sign in; nothing that the policy refused
    assert "401" in errors[0]
