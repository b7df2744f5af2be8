"""Licences: detection on the texts of installed packages, judging of SPDX expressions, and removal of notices."""

import re
from importlib import metadata

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis import Batch, Pipeline, Rows
from tamis.errors import ParameterError
from tamis.text.licenses import KINDS, License, LicenseDetect, LicenseNoticeRemoval, detect, detect_files, kind_of

MIT = """MIT License

Copyright (c) 2020 Ann

Permission is so granted, free of charge, to any person obtaining a copy of this software and associated documentation
files, to deal in the Software without restriction. The above copyright notice and this permission notice shall be included in
all copies or substantial portions of the Software.""".replace(" so granted", " here" + "by granted")
BSD = "Redistribution and use in source and binary forms, with or without\n# modification, are permitted provided that"


def test_licences_of_installed_packages_are_those_that_they_declare():
    """Packages with one licence file and one licence; a file that bundles others is not judged by its declaration."""
    judged = wrong = 0
    for package in metadata.distributions():
        declared = package.metadata.get("License-Expression")
        files = [file for file in package.files or () if re.search(r"(?i)(^|/)(licen[cs]e|copying)[^/]*$", str(file))]
        files = [file for file in files if ".dist-info" in str(file)]
        if declared in ("MIT", "Apache-2.0", "BSD-3-Clause", "BSD-2-Clause", "ISC", "MPL-2.0") and len(files) == 1:
            found = detect(files[0].read_text(encoding="utf-8"))
            judged += 1
            wrong += found is None or declared not in found
    assert judged >= 30
    assert wrong == 0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (MIT, "MIT"),
        (MIT.partition(" The above")[0], "MIT-0"),
        (f"# Copyright 2020 Ann\n# {BSD}\n", "BSD-2-Clause"),
        (f"/* {BSD} ... Neither the name of Ann */", "BSD-3-Clause"),
        ("// SPDX-License-Identifier: (MIT OR Apache-2.0)\n", "(MIT OR Apache-2.0)"),
        ("/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */", "GPL-2.0-only WITH Linux-syscall-note"),
        ("<!-- SPDX-License-Identifier: CC-BY-4.0 -->", "CC-BY-4.0"),
        ("# This file is licensed under the terms of the MIT license.", "MIT"),
        ("Licensed under the Apache License, Version 2.0 (the 'License')", "Apache-2.0"),
        (
            "# it under the terms of the GNU General Public License as published by\n# the Free Software Foundation; either "
            "version 2 of the License, or\n# (at your option) any later version.",
            "GPL-2.0-or-later",
        ),
        ("under the GNU Lesser General Public License v2.1", "LGPL-2.1-only"),
        ("GNU AFFERO GENERAL PUBLIC LICENSE\n  Version 3, 19 November 2007\n", "AGPL-3.0-only"),
        ("Creative Commons Attribution-NonCommercial-ShareAlike 4.0", "CC-BY-NC-SA-4.0"),
        (f"{BSD} ... The names of its contributors may not be used to endorse products", "BSD-3-Clause"),
        (f"{BSD} ... Altered source versions must be plainly marked as such", "bzip2-1.0.6"),
        (
            f"You have a choice of one of two licenses: the GNU General Public License (GPL) Version 2, or this one: {BSD}",
            "GPL-2.0-only OR BSD-2-Clause",
        ),
        (
            MIT.partition(" The above")[0] + " The above copyright notice including the dates of first publication",
            "SGI-B-2.0",
        ),
        ("All rights reserved.", None),
        ("def licence(): pass", None),
        ("", None),
    ],
)
def test_notices(text, found):
    assert detect(text) == found


def test_two_files_are_a_choice_if_their_names_say_so():
    apache = "Apache License\nVersion 2.0, January 2004"
    assert detect_files({"LICENSE-MIT": MIT, "LICENSE-APACHE": apache}) == "Apache-2.0 OR MIT"
    assert detect_files({"LICENSE": MIT, "COPYING": apache}) == "Apache-2.0 AND MIT"
    assert detect_files({"LICENSE": "Ask Ann."}) == "LicenseRef-unknown"
    assert detect_files({}) is None


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        *(("MIT", "permissive"), ("mit", "permissive"), ("GPL-3.0+", "copyleft"), ("LGPL-2.1-only", "weak copyleft")),
        *(("MIT OR GPL-3.0-only", "permissive"), ("MIT AND GPL-3.0-only", "copyleft"), ("NOASSERTION", "other")),
        *(("MIT AND (GPL-2.0-only OR Apache-2.0)", "permissive"), ("MIT AND GPL-2.0-only OR ISC", "permissive")),
        *(("GPL-2.0-only WITH Classpath-exception-2.0 OR MIT", "permissive"), ("MIT OR", "other"), (")", "other")),
        *(("", "other"), ("MIT MIT", "other"), ("(" * 3000, "other"), ("CC-BY-NC-4.0", "other"), ("(MIT", "other")),
    ],
)
def test_kinds(expression, kind):
    assert kind_of(expression) == kind


@given(
    st.lists(st.sampled_from(["MIT", "GPL-2.0-only", "OR", "AND", "WITH", "(", ")", "x"]), max_size=12).map(" ".join)
)
def test_any_expression_has_a_kind(expression):
    assert kind_of(expression) in KINDS


def test_files_under_other_licences_are_dropped_with_the_reason():
    rows = [{"license": each} for each in ("MIT", "GPL-3.0-only", None, "", "Ann-1.0", "mit or gpl-2.0")]
    report = Pipeline(Rows(rows), License()).run(executor="inline")
    assert report.kept == 2
    assert report.dropped == {"license_kind is missing": 2, "license_kind not in permissive": 2}
    assert Pipeline(Rows(rows), License(allow=["Ann-1.0"], refuse=["MIT"])).run(executor="inline").kept == 1
    assert Pipeline(Rows(rows), License(keep=["copyleft", "other"])).run(executor="inline").kept == 2
    lists = pa.table({"license": [["MIT", "Apache-2.0"], ["MIT", "GPL-2.0"], [], None]})
    assert License().score(Batch(lists))["license_kind"].to_pylist() == ["permissive", "copyleft", None, None]
    with pytest.raises(ParameterError, match="is empty"):
        License(keep=[]).check()


def test_a_notice_in_a_file_comes_before_the_licence_of_its_repository():
    rows = [
        {"code": "// SPDX-License-Identifier: MIT", "license": "GPL-3.0-only"},
        {"code": "int x;", "license": "ISC"},
    ]
    found = Pipeline(Rows(rows), LicenseDetect(column="code")).collect(executor="inline")
    assert found["license"].to_pylist() == ["MIT", "ISC"]
    found = Pipeline(Rows([{"text": "int x;"}, {"text": None}]), LicenseDetect(to="spdx")).collect(executor="inline")
    assert found["spdx"].to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/* Copyright 2020 */\nint x;\n", "int x;\n"),
        ("/*\n * Licensed under the MIT License\n */\n\n/* Adds. */\nint add();", "/* Adds. */\nint add();"),
        ("// Copyright A\n// All of it\n\npackage x\n", "package x\n"),
        ("#!/bin/sh\n# -*- coding: utf-8 -*-\n# (c) 2019 Ann\nls", "#!/bin/sh\n# -*- coding: utf-8 -*-\nls"),
        ('"""Copyright Ann."""\nimport os\n', "import os\n"),
        ("<!-- Copyright -->\n<p>", "<p>"),
        ("-- SPDX-License-Identifier: MIT\nmodule X where", "module X where"),
        ("# Says hello.\necho copyright\n", "# Says hello.\necho copyright\n"),
        ("int copyright; // Copyright\n", "int copyright; // Copyright\n"),
        ("/* Copyright, never closed\nint x;", "/* Copyright, never closed\nint x;"),
        ("# Copyright", ""),
        ("\n\n  # Copyright\n  x = 1\n", "  x = 1\n"),
        ("", ""),
    ],
)  # fmt: skip
def test_notices_at_the_beginning_are_removed(text, left):
    assert LicenseNoticeRemoval().apply(Batch.from_rows([{"text": text}]))["text"].to_pylist() == [left]
