"""The check of pages (page_faults.js) finds what it is for. It looks at the pages in test_pages.py and test_site.py."""

from __future__ import annotations

from typing import Any

from tests.browser.checked import PHONE, faults, watch_clicks

GOOD = """<!doctype html><html lang="en"><title>Good</title><style>
body { background: #fff; color: #222 } .later { color: #777; font-size: 24px }
.pale::placeholder { color: #ccc }
.skip { position: absolute; left: -999px } .skip:focus { left: 0 }
</style><a class="skip" href="#here">Skip</a><h1 id="here">One</h1><h2>Two</h2><h3>Three</h3><h2>Two again</h2>
<p class="later">Large text may be paler.</p><button disabled style="color: #ccc">Not now</button>
<label>Name <input placeholder="x"></label><img alt="A mark" src="data:,"><canvas aria-hidden="true"></canvas>
<svg role="img" aria-label="A box"><rect width="99" height="30" fill="#000"/><text x="5" y="20" fill="#fff">in it</text></svg>
<input type="checkbox" id="box" style="opacity: 0; position: absolute"><label for="box" class="seen">Open</label>
<style>#box:focus-visible + .seen { outline: 2px solid #05c }</style>
<ul role="tree"><li role="treeitem" tabindex="0">a</li><li role="treeitem" tabindex="-1">b</li></ul></html>"""
BOX = '<rect width="99" height="30"/>'
PLANTED = {
    "text has a contrast of 2.85": '<p style="color: #999">pale</p>',
    "text has a contrast of 4.48": '<p style="color: #777">nearly</p>',
    "text has a contrast of 3.17": '<p style="opacity: .5">faded</p>',
    "text has a contrast of 1.01": '<div style="background: rgba(0, 0, 0, .87)"><p>black on black</p></div>',
    "text has a contrast of 1.32": f'<svg aria-hidden="true">{BOX}<text y="20" fill="#222">in it</text></svg>',
    "a field's placeholder has a contrast of 1.61": '<input class="pale" aria-label="A" placeholder="x">',
    "not reach what can be clicked: <span>": '<span style="cursor: pointer">more</span>',
    "not reach what can be clicked: <em>": '<em onclick="0">more</em>',
    "not reach what can be clicked: <b>": "<b>listens</b><script>"
    "document.querySelector('b').addEventListener('click', () => 0)</script>",
    "not reach what can be clicked: <label": '<input type="checkbox" id="away" hidden><label for="away">Open</label>',
    "its focus cannot be seen: <button": '<button style="outline: none">Go</button>',
    "the outline of its focus has a contrast of 1.61": '<button style="outline: 2px solid #ccc">Go</button>',
    "takes the focus where nobody sees it": '<div style="position: fixed; left: -300px"><a href="#a">away</a></div>',
    "an image without a text": '<img src="data:,">',
    "an image without a text ": '<img src="data:," alt="_images/a.png">',
    "a drawing with neither role and label nor aria-hidden: <svg>": "<svg></svg>",
    "a drawing with neither role and label nor aria-hidden: <canvas>": '<canvas role="img"></canvas>',
    "a field without a label: <input": "<input>",
    "a field without a label: <select": "<select></select>",
    "nothing says what it does: <button": "<button></button>",
    "a heading h4 follows h2": "<h4>Deep</h4>",
    "the page has 2 headings h1": "<h1>Another</h1>",
    "pixels wide, and the window 390": '<div style="width: 500px">wide</div>',
}


def test_a_good_page_has_no_faults_and_each_fault_is_found(window: Any) -> None:
    page = window(size=PHONE).page
    watch_clicks(page)
    page.goto("about:blank")
    page.set_content(GOOD)
    assert faults(page, (PHONE, "light"), (PHONE, "dark")) == []
    for says, planted in PLANTED.items():
        page.set_content(GOOD.replace("</html>", f"{planted}</html>"))
        found = faults(page, (PHONE, "light"))
        assert len(found) == 1 and says.strip() in found[0], f"{planted}: {found}"
    page.set_content(GOOD.replace(' lang="en"', "").replace("Good", " "))
    assert faults(page, (PHONE, "light")) == [
        "light, 390: the document has no title",
        "light, 390: the document says no language",
    ]
