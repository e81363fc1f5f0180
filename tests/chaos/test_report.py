"""The page's counts are those of the committed summary, and the campaign was large enough and lost nothing."""

from __future__ import annotations

import json

from tests.chaos.campaign import SHARES
from tests.chaos.report import PAGE, SUMMARY, page


def test_the_page_has_the_counts_of_the_summary() -> None:
    text, summary = PAGE.read_text(encoding="utf-8"), json.loads(SUMMARY.read_text(encoding="utf-8"))
    assert page(text, summary) == text, "run python -m tests.chaos.report"
    assert page(text, {**summary, "kills": summary["kills"] + 1}) != text


def test_the_campaign_killed_every_kind_and_lost_nothing() -> None:
    summary = json.loads(SUMMARY.read_text(encoding="utf-8"))
    assert summary["kills"] >= 30 and set(summary["kills_by_kind"]) == set(SHARES)
    assert summary["lost"] == []
