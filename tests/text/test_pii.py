"""Personal data: what is found, what must not be, and that masks are stable."""

import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import Pipeline, Rows
from tamis.batch import Batch
from tamis.errors import ParameterError
from tamis.text.pii import _CANDIDATES, FINDERS, KINDS, PersonalDataMask, find_ips, is_iban, passes_luhn

POSITIVE = {
    "email": [
        "ann@example.org",
        "first.last+tag@sub.domain.co.uk",
        "ANN_B@EXAMPLE.COM",
        "jos\u00e9@correo.es",
        "x@xn--bcher-kva.xn--p1ai",
        "o-brien@my-host.travel",
        "user%40@example.museum",
        "joe@[192.168.0.1]",
        "joe@192.168.0.1",
        "joe.b@[IPv6:2001:db8::1]",
    ],
    "iban": [
        "DE89370400440532013000",
        "DE89 3704 0044 0532 0130 00",
        "GB82 WEST 1234 5698 7654 32",
        "GB82WEST12345698765432",
        "FR14 2004 1010 0505 0001 3M02 606",
        "NO9386011117947",
        "NO93-8601-1117-947",
        "CH93 0076 2011 6238 5295 7",
    ],
    "card": [
        "4111111111111111",
        "4111 1111 1111 1111",
        "5500-0000-0000-0004",
        "3400 000000 00009",
        "378282246310005",
        "6011000990139424",
        "3530111333300000",
        "30569309025904",
        "2223003122003222",
        "4222222222222",
    ],
    "ip": [
        "93.184.216.34",
        "8.8.44.8",
        "172.32.0.1",
        "2606:2800:220:1:248:1893:25c8:1946",
        "2a00:1450:4001:81b::200e",
        "2001:4860:4860::8888",
    ],
    "phone": [
        "+44 20 7946 0958",
        "+1 (212) 555-0123",
        "+1-212-555-0123",
        "+33 1 23 45 67 89",
        "+49 (0) 30 1234567",
        "+491701234567",
        "+61 2 9374 4000",
        "0033 1 23 45 67 89",
        "(212) 555-0123",
        "212-555-0123",
        "1-800-555-0199",
        "212.555.0123",
        "212 555 0123",
        "01 23 45 67 89",
        "01.23.45.67.89",
        "020 7946 0958",
        "07700 900123",
        "0171-1234567",
        "(030) 123 4567",
        "(030)1234567",
    ],
}

NEGATIVE = {
    "email": [
        "@handle",
        "ann@localhost",
        "logo@2x.png",
        "package@1.2.3",
        "package@1.2.3.4",
        "joe@[1.2.3]",
        "git@github.com:org/repo.git",
        "a @ b . c",
        "meet @home. Then go",
        "@app.route",
        "x" * 70 + "@example.org",
        "me@-bad.com",
        "100@$.50",
    ],
    "iban": [
        "DE88370400440532013000",
        "XX89370400440532013000",
        "DE8937040044053201300",
        "DE893704004405320130001",
        "de89370400440532013000",
        "AB12 3456 7890",
        "ISBN 9783161484100",
    ],
    "card": [
        "4111111111111112",
        "1234567890123452",
        "9111111111111111",
        "41111111111111110000",
        "4111 1111 11111111",
        "order 20231005123045",
        "0.4111111111111111",
        "4111-1111 1111-1111",
        "ISBN 978-3-16-148410-0",
        "id4111111111111111",
    ],
    "ip": [
        "1.2.3.4",
        "version 10.12.33.41",
        "v10.12.33.41",
        "Chrome/91.120.44.124",
        "Chrome 91.0.4472.124",
        "section 14.12.1.3",
        "1.3.6.1.4.1.311",
        "256.100.50.25",
        "01.02.03.2004",
        "192.168.10.1",
        "10.20.30.40",
        "127.0.0.1",
        "203.0.113.7",
        "12:30:45",
        "00:1A:2B:3C:4D:5E",
        "std::vector and add::bad",
        "fe80::1",
        "2001:db8::1",
        "::1",
        "a::b",
        "::",
    ],
    "phone": [
        "2023-10-05",
        "05.10.2023",
        "10/05/2023 12:30",
        "12:30:45.123",
        "1234567890",
        "2125550123",
        "order 1002003004005",
        "ISBN 0-306-40615-2",
        "ISSN 0317-8471",
        "1,234,567.89",
        "+10000000",
        "+1 2 3 4 5 6 7 8 9",
        "+5",
        "112",
        "1990-1995",
        "250 300 4000 500",
        "x-212-555-01234",
        "93.184.216.34",
        "0.0123 4567",
        "12-212-555-0123",
        "3.14159 26535",
        "pages 212-215",
        "v2.0.1-212",
    ],
}


def spans(kind, text):
    return [text[start:stop] for start, stop in FINDERS[kind](text)]


def mask(text, **options):
    found = PersonalDataMask(**options).apply(Batch(pa.table({"text": pa.array([text], pa.string())})))
    return found["text"].to_pylist()[0]


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind in KINDS for value in POSITIVE[kind]])
def test_found(kind, value):
    for text in (
        value,
        f"see {value}.",
        f"({value})",
        f"a: {value}, b",
        f"{value}\n{value}",
        f"\u4f60\u597d {value} \u8c22",
    ):
        assert set(spans(kind, text)) == {value}, text
        assert re.search(_CANDIDATES[kind], text)
    assert mask(f"x {value} y") == f"x [{kind.upper()}] y"


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind in KINDS for value in NEGATIVE[kind]])
def test_not_found(kind, value):
    for text in (value, f"see {value} there", f"({value})"):
        assert spans(kind, text) == [], text


@pytest.mark.parametrize(
    "value", sorted({value for values in NEGATIVE.values() for value in values} - {"93.184.216.34"})
)
def test_what_is_not_one_kind_is_not_another(value):
    assert mask(f"a {value} b") == f"a {value} b"


def test_private_addresses_on_request():
    for value in ("192.168.10.1", "127.0.0.1", "fe80::1", "::1", "2001:db8::1"):
        assert [value] == [value[a:b] for a, b in find_ips(value, public_only=False)]
        assert mask(f"host {value} up", public_ips_only=False) == "host [IP] up"
        assert mask(f"host {value} up") == f"host {value} up"
    assert mask("add::bad and 1.2.3.4", public_ips_only=False) == "add::bad and 1.2.3.4"


@settings(deadline=None)
@given(st.integers(0, 10**15 - 1))
def test_luhn_accepts_just_one_last_digit(number):
    assert sum(passes_luhn(f"{number}{digit}") for digit in range(10)) == 1


@settings(deadline=None)
@given(st.text("0123456789ABCDEF", min_size=11, max_size=30))
def test_iban_accepts_the_checksum_that_the_standard_computes(rest):
    number = int("".join(str(int(char, 36)) for char in rest + "DE00"))
    check = 98 - number % 97
    assert is_iban(f"DE{check:02d}{rest}")
    assert not is_iban(f"DE{(check + 1) % 97:02d}{rest}")


known = [value for kind in KINDS for value in POSITIVE[kind] + NEGATIVE[kind]]
texts = st.lists(
    st.sampled_from(known) | st.sampled_from([*" .,-:/@+()[]\n0123456789aF", "00", "DE89", "::"]), max_size=10
).map("".join)


class TestMask:
    @settings(max_examples=100, deadline=None)
    @given(texts)
    def test_twice_is_once(self, text):
        for options in ({}, {"replacements": {"email": "a@example.com", "phone": "", "ip": "93.184.216.34"}}):
            once = mask(text, **options)
            assert mask(once, **options) == once

    @settings(max_examples=100, deadline=None)
    @given(texts)
    def test_no_row_that_holds_something_is_passed_over(self, text):
        for kind in KINDS:
            if spans(kind, text):
                assert pa.compute.match_substring_regex(pa.array([text]), _CANDIDATES[kind]).to_pylist() == [True]

    @settings(deadline=None, max_examples=40)
    @given(st.lists(st.none() | texts, max_size=4))
    def test_rows_do_not_disturb_each_other(self, rows):
        step = PersonalDataMask(counts=True)
        found = step.apply(Batch(pa.table({"text": pa.array(rows, pa.string())})))
        assert found["text"].to_pylist() == [None if row is None else mask(row) for row in rows]

    def test_counts_by_kind(self):
        rows = [{"text": "a@b.org, c@d.org and 212-555-0123"}, {"text": "nothing"}, {"text": None}]
        table = Pipeline(Rows(rows), PersonalDataMask(counts=True)).collect(executor="inline")
        assert table.column("num_emails").to_pylist() == [2, 0, 0]
        assert table.column("num_phones").to_pylist() == [1, 0, 0]
        assert {"num_ips", "num_cards", "num_ibans"} <= set(table.column_names)

    def test_kinds_and_replacements(self):
        text = "a@b.org 212-555-0123"
        assert mask(text, kinds=["phone"]) == "a@b.org [PHONE]"
        assert mask(text, replacements={"email": "<mail>"}) == "<mail> [PHONE]"
        step = PersonalDataMask(kinds=["email"], into="masked")
        assert Pipeline(Rows([{"text": text}]), step).collect(executor="inline").to_pylist() == [
            {"text": text, "masked": "[EMAIL] 212-555-0123"}
        ]

    def test_the_rarer_kind_wins(self):
        assert mask("DE89 3704 0044 0532 0130 00") == "[IBAN]"
        assert mask("+4111 1111 1111 1111") == "+[CARD]"

    def test_an_email_already_replaced_is_not_counted(self):
        step = PersonalDataMask(replacements={"email": "email@example.com"}, counts=True)
        found = step.apply(Batch(pa.table({"text": ["email@example.com ann@example.org"]})))
        assert (found["text"].to_pylist(), list(found["num_emails"])) == (["email@example.com email@example.com"], [1])

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"replacements": {"name": "x"}}, "unknown kind `name`"),
            ({"replacements": {"phone": "a@b.org"}}, "would be masked as `email` itself"),
            ({"replacements": {"phone": "call 212-555-0123"}}, "would be masked as `phone` itself"),
            ({"kinds": []}, "nothing to mask"),
        ],
    )
    def test_mistakes_are_reported_before_data_moves(self, options, message):
        with pytest.raises(ParameterError, match=message):
            PersonalDataMask(**options).check()

    @pytest.mark.parametrize("unit", ["a", "@", "1", "1.", "+1", "a.", "a@", ":", "1 ", "0123 ", "DE89", "(0", "a@b.c"])
    def test_time_is_linear_in_odd_texts(self, unit):
        tail = " ann@example.org DE89370400440532013000 93.184.216.34 +44 20 7946 0958 4111111111111111"
        text = unit * (200_000 // len(unit)) + tail
        assert mask(text).endswith("[EMAIL] [IBAN] [IP] [PHONE] [CARD]")

    def test_odd_rows(self):
        odd = ["", None, "\x00", "\U0001f600@\U0001f600.com", "\u202e+44 20 7946 0958", "a\r\nb@c.org\r"]
        step = PersonalDataMask()
        found = step.apply(Batch(pa.table({"text": pa.array(odd, pa.large_string())})))["text"]
        assert found.type == pa.large_string()
        assert found.to_pylist() == ["", None, "\x00", odd[3], "\u202e[PHONE]", "a\r\n[EMAIL]\r"]
