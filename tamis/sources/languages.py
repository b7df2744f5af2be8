"""Programming languages by file name and first line. Names are those of GitHub's Linguist, in lower case."""

from __future__ import annotations

import re

_BY_SUFFIX = {
    "ada": "adb ads", "assembly": "asm s", "awk": "awk", "batchfile": "bat cmd", "c": "c h", "c#": "cs csx",
    "c++": "cc cpp cxx c++ hh hpp hxx ipp tpp inl", "clojure": "clj cljc cljs edn", "cmake": "cmake",
    "cobol": "cob cbl",
    "coffeescript": "coffee", "common lisp": "lisp lsp cl", "crystal": "cr", "css": "css", "csv": "csv tsv",
    "cuda": "cu cuh",
    "cython": "pyx pxd pxi", "d": "d", "dart": "dart", "diff": "diff patch", "elixir": "ex exs", "elm": "elm",
    "emacs lisp": "el", "erlang": "erl hrl", "f#": "fs fsi fsx", "fortran": "f f90 f95 f03 f08 for", "gdscript": "gd",
    "glsl": "glsl vert frag geom", "go": "go", "gradle": "gradle", "graphql": "graphql gql", "groovy": "groovy",
    "haskell": "hs lhs", "hcl": "tf hcl", "hlsl": "hlsl", "html": "html htm xhtml", "idris": "idr", "ini": "ini cfg",
    "java": "java", "javascript": "js mjs cjs jsx", "json": "json jsonl", "julia": "jl", "jupyter notebook": "ipynb",
    "kotlin": "kt kts", "less": "less", "lua": "lua", "makefile": "mk mak", "markdown": "md markdown mdx",
    "matlab": "m",
    "nim": "nim", "nix": "nix", "objective-c": "mm", "ocaml": "ml mli", "pascal": "pas pp", "perl": "pl pm t",
    "php": "php phtml",
    "powershell": "ps1 psm1 psd1", "prolog": "pro", "protocol buffer": "proto", "python": "py pyi pyw",
    "r": "r rmd", "racket": "rkt", "restructuredtext": "rst", "ruby": "rb rake gemspec", "rust": "rs",
    "sass": "sass", "scala": "scala sc",
    "scheme": "scm ss", "scss": "scss", "shell": "sh bash zsh ksh fish", "smalltalk": "st", "solidity": "sol",
    "sql": "sql",
    "standard ml": "sml sig", "starlark": "bzl star", "svelte": "svelte", "swift": "swift", "systemverilog": "sv svh",
    "tcl": "tcl", "tex": "tex sty cls bib", "text": "txt", "toml": "toml", "typescript": "ts tsx mts cts",
    "verilog": "v vh",
    "vhdl": "vhd vhdl", "vim script": "vim", "visual basic": "vb bas", "vue": "vue", "webassembly": "wat wast",
    "xml": "xml xsd xsl xslt svg plist", "yaml": "yml yaml", "zig": "zig",
}  # fmt: skip
_SUFFIXES = {suffix: name for name, listed in _BY_SUFFIX.items() for suffix in listed.split()}
_NAMES = {
    "makefile": "makefile", "gnumakefile": "makefile", "dockerfile": "dockerfile", "containerfile": "dockerfile",
    "cmakelists.txt": "cmake", "rakefile": "ruby", "gemfile": "ruby", "vagrantfile": "ruby", "jenkinsfile": "groovy",
    "build": "starlark", "build.bazel": "starlark", "workspace": "starlark", ".bashrc": "shell", ".profile": "shell",
    ".zshrc": "shell", "pkgbuild": "shell", "configure.ac": "m4", "meson.build": "meson", ".vimrc": "vim script",
}  # fmt: skip
_INTERPRETERS = {
    "python": "python", "python2": "python", "python3": "python", "bash": "shell", "sh": "shell", "zsh": "shell",
    "dash": "shell",
    "ksh": "shell", "perl": "perl", "ruby": "ruby", "node": "javascript", "nodejs": "javascript", "php": "php",
    "lua": "lua",
    "rscript": "r", "awk": "awk", "gawk": "awk", "tclsh": "tcl", "julia": "julia", "deno": "typescript",
    "groovy": "groovy",
}  # fmt: skip
_SHEBANG = re.compile(r"#!\s*(?:\S*/)?(?:env\s+(?:-\S+\s+)*)?(?:\S*/)?([A-Za-z]+[0-9]?)")


def language_of(path: str, first_line: str = "") -> str | None:
    """The language of a source file by its name, or else by its `#!` line.

    >>> language_of("src/main.rs"), language_of("Makefile"), language_of("run", "#!/usr/bin/env python3"), language_of("x.bin")
    ('rust', 'makefile', 'python', None)
    """
    name = path.rpartition("/")[2].lower()
    found = _NAMES.get(name) or _SUFFIXES.get(name.rpartition(".")[2] if "." in name[1:] else "")
    if found is None and first_line.startswith("#!"):
        shebang = _SHEBANG.match(first_line)
        found = _INTERPRETERS.get(shebang[1].lower()) if shebang is not None else None
    return found
