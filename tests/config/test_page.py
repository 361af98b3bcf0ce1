"""docs/settings.md is what the table says."""

from __future__ import annotations

from monarch.config import settings
from tests.support.settings_page import PAGE, groups, page


def test_the_page_of_settings_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "write it anew: python -m tests.support.settings_page"


def test_every_setting_is_on_it_once() -> None:
    listed = [setting.name for rows in groups().values() for setting in rows]
    assert sorted(listed) == sorted(setting.name for setting in settings.TABLE if not setting.inert)
    assert all(f"`{setting.name}`" in page() for setting in settings.TABLE)
