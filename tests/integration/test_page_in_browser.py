"""The page at `/` in a real browser, on a real set: what it shows, what it does, and who can use it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from replset.client import WireClient
from replset.local_set import LocalMember, wait_until
from replset.optime import optime_or_none
from tests.integration.browser import DESKTOP, LARGE, PHONE, REWRITES_PICTURES, Tab, chromium, tab
from tests.integration.conftest import FAST, next_ports, start_set
from tests.integration.forked import ForkedSet, running_set
from tests.integration.talk import (
    a_secondary,
    configuration,
    cut,
    find,
    heal,
    insert,
    others_of,
    run,
)
from tests.integration.test_restore import lose_writes

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


def row(member: LocalMember) -> str:
    return f'#member-rows tr[data-key="{member.host}"]'


def answer_yes(page: Any) -> None:
    page.locator("#question button.danger").click()


def test_the_set_is_shown_as_it_is_and_the_commit_point_moves(browser: Any, local: ForkedSet) -> None:
    primary = local.wait_for_primary()
    with tab(browser, primary.http) as seen:
        seen.wait_for("#connection", "live")
        for member in local.members:
            seen.wait_for(row(member), "PRIMARY" if member is primary else "SECONDARY")
            seen.wait_for("#topology svg", member.host)
        assert seen.text("#set-name") == local.name
        assert f"Primary {primary.host}" in seen.text("#summary")
        assert "Nothing" in seen.text("#remarks")
        for member in others_of(local, primary):
            assert primary.host in seen.text(row(member)), "it fetches from the primary"
        seen.wait_for("#elections li.won", primary.host)
        assert "Reason: " in seen.text("#elections li:first-child")

        committed = str(optime_or_none(insert(primary, *range(1100, 1110))["opTime"]))
        seen.wait_for('#oplog-facts dd[data-key="Commit point:"]', committed)
        assert "all are committed" in seen.page.locator("#track svg").get_attribute("aria-label")
        seen.wait_for("#operations-text", "write commands a second")
        seen.page.locator("#lag-chart canvas").wait_for()

        slow = {"failCommands": ["count"], "blockConnection": True, "blockTimeMS": 150}
        run(primary, {"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": slow}, "admin")
        run(primary, {"count": HOSTILE})
        seen.wait_for("#slow-list li", f"shop.{HOSTILE} took")
        run(primary, {"replSetConsumerCreate": "mailer", "ns": "shop"}, "admin")
        run(primary, {"replSetConsumerRead": "mailer", "reader": HOSTILE}, "admin")
        seen.wait_for("#consumer-list li", f"read by {HOSTILE}")
        assert seen.page.locator("main img").count() == 0, "a name is text, whatever it is"


def test_everybody_can_use_it(browser: Any, local: ForkedSet) -> None:
    """The accessibility rules of axe hold, dark and light, and nothing is wider than the screen."""
    with tab(browser, local.wait_for_primary().http) as seen:
        seen.wait_for("#elections li", "Term")
        seen.page.locator("#operations-chart canvas").wait_for()
        for width, height in (DESKTOP, PHONE):
            seen.page.set_viewport_size({"width": width, "height": height})
            for scheme in ("light", "dark"):
                seen.page.emulate_media(color_scheme=scheme)
                assert seen.violations() == [], (width, scheme)
            wait_until(seen.is_as_wide_as_the_screen, 10, "the page to fit")


PICTURES = {"light": (LARGE, "light"), "dark": (LARGE, "dark"), "phone": (PHONE, "dark")}


@pytest.mark.skipif(not REWRITES_PICTURES, reason="docs/images is rewritten with REWRITE_SCREENSHOTS=1 only")
def test_pictures_for_the_docs(browser: Any, local: ForkedSet) -> None:
    primary = local.wait_for_primary()
    for name, (size, scheme) in PICTURES.items():
        with tab(browser, primary.http, size=size, scheme=scheme) as seen:
            ends = time.monotonic() + 15
            while time.monotonic() < ends:
                run(primary, {"insert": "work", "documents": [{"n": n} for n in range(5)]})
                run(primary, {"find": "work", "limit": 1})
            seen.picture(f"page-{name}")


def test_a_primary_steps_down_by_keyboard_and_the_change_is_told(browser: Any, local: ForkedSet) -> None:
    old, heir = local.wait_for_primary(), a_secondary(local)
    with tab(browser, old.http) as seen:
        seen.wait_for("#step-down option", heir.host)
        page = seen.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.locator("#step-down [name=seconds]").focus()
        page.keyboard.press("Tab")
        page.locator("#step-down select").select_option(heir.host)
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert f"for {heir.host}" in seen.text("#question-text")
        assert page.evaluate("document.activeElement.value") == "no", "a slip of the finger does nothing"
        assert seen.violations() == []
        page.keyboard.press("Escape")
        page.locator("#step-down button").press("Enter")
        page.locator("#question button.danger").press("Enter")
        seen.wait_for("#action-outcome", "Done.")
        seen.wait_for(row(heir), "PRIMARY")
        seen.wait_for("#announcements", f"{heir.host} is PRIMARY now")
        seen.wait_for("#elections li.won", heir.host)
        assert page.locator("#step-down button").is_disabled()
        seen.wait_for("#step-down .elsewhere", f"page of {heir.host}")
    assert local.wait_for_primary() is heir


@pytest.mark.in_turns
def test_a_member_is_frozen_and_what_is_refused_is_said(browser: Any, local: ForkedSet) -> None:
    member = a_secondary(local)
    with tab(browser, member.http) as seen:
        seen.wait_for("#connection", "live")
        page = seen.page
        page.fill("#freeze [name=seconds]", "1")
        page.click("#freeze button")
        answer_yes(page)
        seen.wait_for("#action-outcome", "Done.")
        page.fill("#add-member [name=host]", local.members[0].host)
        page.click("#add-member button")
        answer_yes(page)
        seen.wait_for("#action-outcome.bad", local.members[0].host)


def test_a_member_without_a_primary_says_so(browser: Any, local: ForkedSet) -> None:
    member = a_secondary(local)
    rest = others_of(local, member)
    with tab(browser, member.http) as seen:
        seen.wait_for("#connection", "live")
        cut(member, rest)
        seen.wait_for("#summary", "No primary")
        for other in rest:
            seen.wait_for(row(other), "DOWN")
        seen.page.locator("#attention.loud").wait_for()
        seen.picture("page-no-primary")
        assert seen.violations() == []
        heal(member)
        seen.wait_for("#summary", "3 of 3 members reachable")


def test_one_click_says_what_would_be_if_a_member_died(browser: Any, local: ForkedSet) -> None:
    primary, member = local.wait_for_primary(), a_secondary(local)
    before = configuration(local)["version"]
    with tab(browser, member.http) as seen:
        seen.page.get_by_role("button", name=f"What if it died? {primary.host}").click()
        seen.wait_for("#what-if pre", f"what if: kill {primary.host} (")
        said = seen.text("#what-if pre")
        assert "majority writes go on: yes" in said
        assert (
            f"next: start it again (replset start, replset cluster up), then: replset status --host {primary.host}"
            in said
        )
        for width, height in (DESKTOP, PHONE):
            seen.page.set_viewport_size({"width": width, "height": height})
            assert seen.violations() == []
            wait_until(seen.is_as_wide_as_the_screen, 10, "the page to fit")
        seen.page.locator("#what-if select").select_option("remove")
        seen.wait_for("#what-if .outcome.bad", f"{primary.host} is primary and cannot be removed")
        assert not seen.page.locator("#what-if pre").is_visible()

        gone = next(other for other in others_of(local, primary) if other is not member)
        local.kill(gone)
        seen.page.get_by_role("button", name=f"What if removed? {gone.host}").click()
        seen.wait_for("#what-if pre", f"primary: {primary.host} as now")
        assert f"No answer from {gone.host}" in seen.text("#what-if .outcome")
        seen.page.locator("#what-if").get_by_role("button", name="Close").click()
        assert not seen.page.locator("#what-if").is_visible()
    assert (configuration(local)["version"], local.wait_for_primary()) == (before, primary)


@pytest.mark.in_turns
def test_with_failover_by_hand_the_page_says_who_can_lead_and_what_it_lacks(browser: Any, tmp_path: Path) -> None:
    with running_set(tmp_path / "set") as local:
        start_set(local, failover="manual")
        primary = local.wait_for_primary()
        heirs = others_of(local, primary)
        for heir in heirs:
            run(heir, {"configureFailPoint": "stopReplProducer", "mode": "alwaysOn"}, "admin")
        lost = str(optime_or_none(insert(primary, 1200, w=1)["opTime"]))
        with tab(browser, heirs[0].http) as seen:
            seen.wait_for(row(primary), lost)
            local.kill(primary)
            seen.wait_for("#summary", "No primary")
            seen.wait_for("#remarks", 'settings.failover is "manual": nobody stands by itself. These can lead: ')
            for heir in heirs:
                seen.wait_for("#remarks", f"{heir.host} (lacks entries of ")
            seen.wait_for("#remarks", f"the newest known is {lost}")
            seen.wait_for("#remarks .next", f"replset step-up {heirs[0].host}")
            assert seen.violations() == []
            for heir in heirs:
                run(heir, {"configureFailPoint": "stopReplProducer", "mode": "off"}, "admin")
            run(heirs[0], {"replSetStepUp": 1}, "admin")
            seen.wait_for("#summary", f"Primary {heirs[0].host}")
            wait_until(lambda: "manual" not in seen.text("#remarks"), 20, "the remark to go")


@pytest.mark.in_turns
def test_a_page_whose_member_ends_says_so_and_goes_on_when_it_is_back(browser: Any, local: ForkedSet) -> None:
    member = a_secondary(local)
    with tab(browser, member.http) as seen:
        seen.wait_for("#connection", "live")
        local.kill(member)
        seen.page.locator("#connection.off").wait_for()
        local.start(member)
        seen.page.locator("#connection.on").wait_for()


@pytest.mark.in_turns
def test_a_rollback_is_compared_tried_and_restored(browser: Any, local: ForkedSet) -> None:
    story = lose_writes(local)
    card = f'#rollback-list li[data-key*="{story.manifest.stem}"]'
    with tab(browser, story.new.http) as seen:
        seen.wait_for(card, "not acknowledged")
        seen.page.locator(card).get_by_role("link").click()
        seen.page.wait_for_url(f"{story.old.http}/**")
        seen.wait_for("#remarks", "1 rollback that nobody acknowledged")
        rollback = seen.page.locator(card)
        press = lambda name: rollback.get_by_role("button", name=name).click()  # noqa: E731

        seen.page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        wait_until(seen.is_as_wide_as_the_screen, 10, "the page to fit")
        seen.page.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})
        press("Show the differences")
        seen.wait_for(f"{card} details", "shop.orders _id 2 update, conflict")
        seen.page.locator(f"{card} summary", has_text="_id 2 ").click()
        assert "kept" in seen.text(f"{card} details[open]")
        rollback.scroll_into_view_if_needed()
        seen.picture("page-rollback", "#rollbacks")
        assert seen.violations() == []

        rollback.get_by_label("Policy").select_option("merge")
        press("Try (writes nothing)")
        seen.wait_for(f"{card} .outcome", "would be put back")
        assert not find(story.new, {"_id": 100})
        press("Restore…")
        answer_yes(seen.page)
        seen.wait_for(f"{card} .outcome", "6 put back, 0 are there already, 3 stay undone")
        assert find(story.new, {"_id": 2})[0]["lost"] is True
        press("Check the files")
        seen.wait_for(f"{card} .outcome", "All files are sound")
        press("Acknowledge")
        seen.wait_for(f"{card} .facts", "; acknowledged")


@pytest.mark.in_turns
def test_a_witness_is_added_from_a_secondarys_page(browser: Any, local: ForkedSet) -> None:
    witness = local.add(next_ports(1)[0], witness=True)
    with tab(browser, a_secondary(local).http) as seen:
        seen.wait_for("#connection", "live")
        seen.page.fill("#add-member [name=host]", witness.host)
        seen.page.locator("#add-member select").select_option("witness")
        seen.page.click("#add-member button")
        answer_yes(seen.page)
        seen.wait_for("#action-outcome", "Done.")
        seen.wait_for(row(witness), "WITNESS")


def test_the_interactive_page_of_the_api_works_without_the_internet(browser: Any, local: ForkedSet) -> None:
    with tab(browser, f"{local.members[0].http}/docs") as seen:
        seen.wait_for(".opblock-summary-path", "/v1/replset/status")


@pytest.mark.in_turns
def test_a_member_in_no_set_says_what_to_do_and_one_that_follows_whom(
    browser: Any, local: ForkedSet, tmp_path: Path
) -> None:
    with running_set(tmp_path / "set", "alone") as alone:
        member = alone.add(next_ports(1)[0])
        with tab(browser, member.http) as seen:
            seen.wait_for("#remarks", f"replset initiate --host {member.host}")
            assert not seen.page.locator("#actions").is_visible(), "nothing can be done yet"
            assert seen.violations() == []
            alone.initiate(FAST)
            seen.wait_for("#remarks", "All is well")
            run(member, {"replSetFollow": "start", "source": local.members[0].host}, "admin")
            seen.wait_for("#topology svg", f"follows {local.name}")


@pytest.mark.in_turns
def test_a_member_that_waits_for_the_expected_ones_is_not_to_be_initiated(browser: Any, tmp_path: Path) -> None:
    """The set would have it alone, and the others would wait for ever."""
    with running_set(tmp_path / "set", "alone") as alone:
        port, other = next_ports(2)
        member = alone.add(port, flags=["--expect-members", f"127.0.0.1:{port},127.0.0.1:{other}"])
        with tab(browser, member.http) as seen:
            seen.wait_for("#remarks", "This member is in no set.")
            seen.wait_for("#summary", "--expect-members")
            assert "initiate" not in seen.page.locator("#remarks").inner_text()


@pytest.mark.in_turns
def test_with_users_the_page_asks_who_looks_at_it(browser: Any, tmp_path: Path) -> None:
    """A monitor sees the set and changes nothing; an administrator may; a dropped user sees nothing more."""
    with running_set(tmp_path / "closed") as closed:
        member = closed.plan(next_ports(1)[0], flags=["--auth"])
        closed.begin(member)
        wait_until(lambda: member.command({"hello": 1}), 30, "the member to answer")
        with WireClient(member.host) as client:
            first = {"_id": closed.name, "members": [{"_id": 0, "host": member.host}]}
            assert client.command("admin", {"replSetInitiate": first})["ok"] == 1
            wait_until(lambda: client.command("admin", {"hello": 1})["isWritablePrimary"], 30, "a primary")
            new = {"createUser": "root", "pwd": "tea", "roles": ["root"]}
            assert client.command("admin", new)["ok"] == 1
        credentials = httpx.BasicAuth("root", "tea")

        def administer(command: dict[str, object]) -> None:
            httpx.post(f"{member.http}/v1/command/admin", json=command, auth=credentials).raise_for_status()

        administer({"createUser": "eve", "pwd": "milk", "roles": ["clusterMonitor"]})

        with tab(browser, member.http) as seen:
            page = seen.page
            page.locator("#login[open]").wait_for()
            assert closed.name not in page.content(), "it says nothing before"
            assert seen.violations() == []
            log_in(seen, "eve", "wrong")
            seen.wait_for("#login-problem", "Authentication failed")
            log_in(seen, "eve", "milk")
            seen.wait_for(row(member), "PRIMARY")
            page.reload()
            seen.wait_for(row(member), "PRIMARY")
            page.locator(row(member)).get_by_role("button").click()
            seen.wait_for("#what-if pre", "NO PRIMARY")
            page.click("#step-down button")
            answer_yes(page)
            seen.wait_for("#action-outcome.bad", "not authorized")
            administer({"dropUser": "eve"})
            page.locator("#login[open]").wait_for()
            log_in(seen, "root", "tea")
            page.locator("#connection.on").wait_for()
            page.fill("#add-member [name=host]", member.host)
            page.click("#add-member button")
            answer_yes(page)
            seen.wait_for("#action-outcome.bad", member.host)
            assert "not authorized" not in seen.text("#action-outcome")
            page.click("#log-out")
            page.locator("#login[open]").wait_for()


def log_in(seen: Tab, user: str, password: str) -> None:
    seen.page.fill("#login [name=user]", user)
    seen.page.fill("#login [name=password]", password)
    seen.page.press("#login [name=password]", "Enter")
