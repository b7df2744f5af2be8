"""What replaces parts of trafilatura returns what these parts return."""

import random
import re

import pytest
from lxml import etree, html
from trafilatura import core, readability_lxml, xpaths
from trafilatura.utils import HTML_PARSER

from tamis.web import by_trafilatura
from tamis.web.selectors import selector

PATHS = [
    each.path for found in vars(xpaths).values() if isinstance(found, list) for each in found if hasattr(each, "path")
]
BELOW = [path for path in PATHS if not path.strip().startswith("//") and not re.search(r"\|\(?\.//", path)]
OTHERS = [
    *(
        "(.//p[not(.//b) or @id='nav'])[1]",
        ".//*[@id and not(self::p or self::ul)]",
        ".//p[re:test(@class, 'NAV', 'i')]",
    ),
    *(
        ".//div[(@id or @class) and contains(@id|@class, 'a')][1]",
        ".//p[self::div]",
        ".//*[starts-with(@style|@id, 'no')]",
    ),
]
VALUES = """
nav Nav main Main-Content content text post-content article-body story-body fulltext comment-list Comments comment-x commentary
disqus_thread infinite-scroll mvp-post-add-box elementor-share-buttons sidebar cookie hidden display:none noprint bottom link
border teaser Teaser caption respond reply-1 akismet article post social author comments quote page-content x
"""
TAGS = """
div p section span list item ul ol aside article main header details a h1 b head cite quote
"""


def tree_of(seed):
    """A page of elements whose attributes have values that expressions look for, in any order."""
    chosen = random.Random(seed)
    root = html.Element("body")
    elements = [root]
    for _ in range(80):
        element = etree.SubElement(chosen.choice(elements[-8:]), chosen.choice(TAGS.split()))
        for name in chosen.sample(
            ["id", "class", "style", "role", "itemprop", "data-component", "href", "aria-hidden"], 3
        ):
            if chosen.random() < 0.5:
                element.set(name, chosen.choice([*VALUES.split(), "article x", "a bottom", ""]))
        elements.append(element)
    return root


def test_selectors_select_what_xpath_selects():
    trees = [tree_of(seed) for seed in range(40)]
    assert len(BELOW) >= 18
    for path in [*BELOW, *OTHERS]:
        expected = etree.XPath(path, namespaces={"re": "http://exslt.org/regular-expressions"})
        select = selector(path)
        assert select is not None, path
        for tree in (*trees, *trees[0]):
            assert select(tree) == expected(tree), path


@pytest.mark.parametrize(
    "path",
    [
        *(
            "//p",
            ".//p[last()]",
            ".//p[2]",
            ".//p[1][@id]",
            ".//p|.//b",
            ".//x:p",
            ".//p[@x:y]",
            ".//p[re:test(text(), 'a')]",
        ),
        *(
            ".//p[translate(@id, 'ab', 'c')='x']",
            ".//p[contains(., 'x')]",
            ".//p/b",
            ".//p[.//b/i]",
            ".//p[self::*]",
            ".//p[@a=1]",
        ),
        *(
            ".//p[@a='x'",
            ".//p[contains(translate(@id, 'ab', 'c'), 'x')]",
            ".//p[count(@a)]",
            ".//p[@a!='x']",
            "(.//p)[2]",
            "",
        ),
    ],
)
def test_other_expressions_are_left_to_xpath(path):
    assert selector(path) is None


def test_a_selector_forgets_what_it_remembers_before_that_takes_memory(monkeypatch):
    monkeypatch.setattr("tamis.web.selectors._MOST_REMEMBERED", 3)
    page = html.fromstring("<body>" + "".join(f"<p id='{number}'>x</p>" for number in range(20)))
    select = selector(".//p[contains(@id, '1')]")
    assert [each.get("id") for each in select(page)] == [str(number) for number in range(20) if "1" in str(number)]
    assert len(select._remembered) <= 3


def test_elements_have_the_classes_that_lxml_gives_them():
    page = "<body>" + "".join(f"<{tag}></{tag}>" for tag in sorted(html.defs.tags)) + "<x-y></x-y><!-- a --><?b c?>"
    parser = etree.HTMLParser()
    parser.set_element_class_lookup(by_trafilatura._classes())
    expected = [type(each) for each in html.document_fromstring(page).iter()]
    assert [type(each) for each in etree.fromstring(page, parser).iter()] == expected
    assert len(set(expected)) > 5
    by_trafilatura._replace_parts()
    assert type(html.document_fromstring("<form></form>", parser=HTML_PARSER).find(".//form")) is html.FormElement


@pytest.mark.parametrize(
    "text", [f"a{chr(code)}b" for code in (*range(32), 127, 133, 160, 55424, 65532, 65533, 65534, 65535)]
)
def test_characters_that_xml_does_not_allow_are_removed(text):
    pattern = re.compile(by_trafilatura._NOT_XML)
    assert by_trafilatura._WithoutControl(pattern).sub("", text) == pattern.sub("", text)


def test_functions_are_replaced_only_if_their_source_is_known():
    by_trafilatura._replace_parts()
    replaced = [core._extract_and_compare, readability_lxml.Document.remove_unlikely_candidates]
    assert {each.__module__ for each in replaced} == {"tamis.web.by_trafilatura"}

    class Changed:
        def remove_unlikely_candidates(self):
            return "another version"

    by_trafilatura._replace(Changed, "remove_unlikely_candidates", print)
    by_trafilatura._replace(None, "remove_unlikely_candidates", print)
    assert Changed().remove_unlikely_candidates() == "another version"
