r"""LaTeX to text: what is kept, what is removed, macros, papers of several files, and sources that never end."""

import contextlib
import gzip
import random

import pytest

from tamis.web import LatexExtract
from tamis.web.convert import convert
from tamis.web.latex import Options, TooDeep, TooFar, latex_to_text
from tests.tars import special, tar_bytes
from tests.web import make_documents as make

MARKDOWN = Options(markdown=True, tables=True)
REQUEST = LatexExtract(max_unpacked="2MB").request() | {"name": "a.gz"}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (r"a \emph{b} {\bf c} \textbf{d}", "a b c d"),
        ("a % comment\nb \\% c", "a b % c"),
        ("one\n\ntwo % x\n\n  three", "one\n\ntwo\n\nthree"),
        (r"``quoted'' -- a---b~c", "“quoted” – a—b c"),  # noqa: RUF001
        (r"M\"obius, \'{e}, \c{c}, na\"{\i}ve, \O re, stra\ss e", "Möbius, é, ç, naïve, Øre, straße"),
        (r"shown~\cite{a,b}, see \S\ref{c} (\citep[p.~3]{d}).", "shown, see §."),
        (
            r"$x_{1} \in \mathbb{R}$ and \(y\) and \[z\] and $$w$$",
            r"$x_{1} \in \mathbb{R}$ and $y$ and $$z$$ and $$w$$",
        ),
        (r"\begin{equation}\label{e} a=b \nonumber\end{equation}", "$$a=b$$"),
        (r"\begin{align}a&=b\\c&=d\end{align}", r"$$\begin{align} a&=b\\c&=d \end{align}$$"),
        (r"$\text{if $x$ holds}$ then", r"$\text{if $x$ holds}$ then"),
        (r"\begin{figure}\includegraphics{a}\caption{A \emph{cap} $x$.}\end{figure}after", "A cap $x$.\n\nafter"),
        (r"text\footnote{A note.} more", "text more\n\nA note."),
        (r"\begin{thebibliography}{9}\bibitem{a} B.\end{thebibliography}after \bibliography{refs}", "after"),
        (r"\begin{comment}no\end{comment}yes \iffalse no \else also \fi end", "yes also end"),
        (r"\url{https://a.b/c_d%e} \href{https://x}{label}", "https://a.b/c_d%e label"),
        (r"\unknown[option]{kept} \vspace{2cm}x", "kept x"),
        (r"\verb|a%b\c| and \begin{verbatim}" + "\n  x % y\n" + r"\end{verbatim}", "a%b\\c and\n\n  x % y"),
        (r"\lstnewenvironment{sh}{}{}\begin{sh}[a={[b]}]" + "\n$x % y\n" + r"\end{sh}after", "$x % y\n\nafter"),
        (r"\MakeShortVerb{\|}a |\b{%| c \DeleteShortVerb{\|}|d|", r"a \b{% c |d|"),
        (r"\begin{multicols}{2}a\end{multicols}\begin{x}[t]{3cm}{\textwidth}{kept}\end{x}", "a\n\nkept"),
        (r"\pair{one}{two}, see \figureref{fig:a} and \mycitep[p.~1]{b}", "one two, see and"),
        (r'\symbol{65}\char66\char"43 \SI{5}{\kilo\metre\per\second}', "ABC 5 km/s"),
        (r"\newacronym{cpu}{CPU}{a unit}\gls{cpu}, \acrfull{cpu}, \ac{GPU}", "CPU, a unit (CPU), GPU"),
        (r"a {never closed \textbf{b", "a never closed b"),
        (r"$never closed" + "\n\nnext", "$never closed$\n\nnext"),
    ],
)
def test_commands_become_text(source, text):
    assert latex_to_text(source).text == text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (r"\newcommand{\R}{\mathbb{R}}$\R^2$", r"$\mathbb{R}^2$"),
        (r"\newcommand{\n}[2][2]{\|#2\|_{#1}}$\n{x} \n[1]{y}$", r"$\|x\|_{2} \|y\|_{1}$"),
        (r"\def\be{\begin{equation}}\def\ee{\end{equation}}\be x \ee", "$$x$$"),
        (r"\def\pair(#1,#2){<#1;#2>}\pair(a,b)", "<a;b>"),
        (r"\DeclareMathOperator{\tr}{tr}$\tr A$", r"$\operatorname{tr} A$"),
        (r"\newcommand{\a}{one}\renewcommand{\a}{two}\providecommand{\a}{three}\a", "two"),
        (r"\newcommand*\name{Rye}\let\other=\name\other{} bread", "Rye bread"),
        (r"\newenvironment{claim}[1]{Claim (#1). }{ Done.}\begin{claim}{A}x\end{claim}", "Claim (A). x Done."),
        (r"\newif\iflong\longtrue\iflong long\else short\fi", "long"),
        (r"\newcommand{\e}[1]{\emph{#1}}\e{\e{\e{deep}}}", "deep"),
        (r"\ifstrequal{a}{b}{}{} \ifx a b no \ifbool{x}{y}{z}\fi yes \unless\ifPDFTeX no\fi", "a b yes"),
        (r"\ifnum1<2 never ends \begin{document}but this is shown\end{document}", "but this is shown"),
        (r"\def\file#1{\textsf{#1}\xspace}\file{a.cls} is, \file{b.sty}, L\kern-.3em x", "a.cls is, b.sty, L x"),
        (r"\NewDocumentCommand{\f}{s O{d} m}{\IfBooleanTF{#1}{star}{no} #2 #3}\f{x} \f*[o]{y}", "no d x star o y"),
        (r"\DeclarePairedDelimiter{\abs}{\lvert}{\rvert}$\abs{x}\abs*{y}$", r"$\lvert x \rvert\lvert y \rvert$"),
        (r"\let\old\section\renewcommand{\section}{\clearpage\old}\section{A}b\section*{C}", "A\n\nb\n\nC"),
        (r"\def\f{\@ifnextchar[{\@f}{\@f[no]}}\def\@f[#1]#2{#1 #2}\f{a} \f[b]{c}", "no a b c"),
        (r"\def\a{x}\edef\a{\a y}\a", "x y"),
        (r"\newcommand{\a}{{never closed \begin{document}but this is shown\end{document}", "but this is shown"),
        (r"\def\each#1,{#1 \ifx,\else\each\fi}\each a,b,c", "a b,c"),
        (r"\newcommand{\make}[1]{\def\made##1{#1 ##1}}\make{a}\made{b}", "a b"),
        (r"\def\a#1\relax{}\a \begin{document}shown\end{document}", "shown"),
        (r"\newtheorem{thm}{Theorem}\begin{thm}[Gauss] It holds.\end{thm}", "Theorem. (Gauss) It holds."),
    ],
)
def test_macros_are_expanded(source, text):
    assert latex_to_text(source).text == text


def test_a_document_within_a_document_is_an_example():
    source = (
        r"\begin{document}a \begin{demo}\documentclass{x}\begin{document}b\end{document}\end{demo} c\end{document} d"
    )
    assert latex_to_text(source).text == "a\n\nb\n\nc"
    source = r"a \begin{verbatim}" + "\n\\begin{document}\n" + r"\end{verbatim} b"
    assert latex_to_text(source).text == "a\n\n\\begin{document}\n\nb"


def test_markdown_keeps_the_markup():
    source = r"""\title{On Rye}\begin{document}\maketitle\section*{Uses}\label{s}
    A \textbf{strong} \emph{word}, \texttt{code} and \href{https://x}{link}.
    \begin{itemize}\item one\begin{enumerate}\item two\end{enumerate}\end{itemize}
    \begin{tabular}{ll}a & b\\ \hline c & d\\\end{tabular}
    \begin{lstlisting}[language=C]
int x; % y
\end{lstlisting}
    \end{document} after"""
    found = latex_to_text(source, MARKDOWN)
    assert found.title == "On Rye"
    assert found.text == (
        "# On Rye\n\n## Uses\n\nA **strong** *word*, `code` and [link](https://x).\n\n- one\n  1. two\n\n"
        "| a | b |\n| --- | --- |\n| c | d |\n\n```\nint x; % y\n```"
    )


@pytest.mark.parametrize(
    "source",
    [
        r"\def\a{\a}\a",
        r"\def\a{\a x}\a",
        r"\def\a{\b}\def\b{\a\a}\a",
        "".join(
            rf"\def\{one}{{{(chr(92) + other + ' ') * 10}}}" for one, other in zip("abcdefgh", "bcdefghi", strict=True)
        )
        + r"\def\i{lol}\a",
        r"\def\a#1{\a{#1#1}}\a{x}",
        r"\newcommand{\a}[2]{\a{#2#1}{#1#2}}\a{x}{y}",
        r"\x[" * 50_000,
        r"\input{a}",
    ],
    ids=["itself", "grows", "two", "billion", "argument", "arguments", "brackets", "input"],
)
def test_macros_that_never_end_are_stopped(source):
    with contextlib.suppress(TooFar):
        assert len(latex_to_text(source, files={"a": r"x \input{a}\input{a}"}).text) < 10_000


@pytest.mark.parametrize(
    "piece", ["{", "\\textbf{", "$", "[", "\\section{", "\\footnote{", "\\verb|", "\\end{a}", "\\if", "#1"]
)
def test_unclosed_sources_take_linear_time(piece):
    assert len(latex_to_text(piece * 20_000).text) <= 20_000 * len(piece)


def test_environments_have_a_limit_of_depth():
    with pytest.raises(TooDeep):
        latex_to_text(r"\begin{itemize}\item " * 1_000)


def test_random_changes_of_a_source_have_a_result():
    generator = random.Random(3)
    source = make.paper(1, r"\begin{align}a&=b\end{align}\begin{tabular}{l}a\\\end{tabular}\footnote{x}\[y\]")
    for _ in range(300):
        at, size = generator.randrange(len(source)), generator.randrange(12)
        changed = source[:at] + generator.choice(["{", "}", "$", "\\", "%", "", "\\end{"]) + source[at + size :]
        for options in (Options(max_expansion=10_000), Options(markdown=True, tables=True, max_expansion=10_000)):
            with contextlib.suppress(TooFar, TooDeep):
                latex_to_text(changed, options)


# ------------------------------------------------------------------------------------------------------------------ papers


def paper_of(members):
    return convert(REQUEST, gzip.compress(tar_bytes(members)))


def test_a_paper_of_several_files_is_put_together():
    members = [
        ("supplement.tex", make.paper(9, "short").encode()),
        (
            "main.tex",
            rb"\documentclass{x}\usepackage{mine}\begin{document}\input{parts/a}\include{b} \own{z}\end{document}"
            + b"%" * 3000,
        ),
        ("parts/a.tex", b"From a."),
        ("b.tex", "Größe".encode("latin-1")),
        ("mine.sty", rb"\newcommand{\own}[1]{Own #1.}"),
        ("../c.tex", b"no"),
        (special("d.tex", b"2", "/etc/passwd"), b""),
        ("figure.pdf", b"%PDF-1.4"),
    ]
    assert paper_of(members)["text"] == "From a.Größe Own z."


WHOLE = rb"\documentclass{x}\begin{document}%s\end{document}"


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([("long.tex", WHOLE % (b"long " * 99)), ("my.tex", WHOLE % rb"\input{a}"), ("a.tex", b"mine " * 200)], "mine"),
        ([("my.tex", WHOLE % rb"mine\subfile{a}"), ("a.tex", WHOLE % (b" inner" * 99))], "mine"),
        ([("my.tex", WHOLE % b"mine"), ("supplement.tex", WHOLE % (b"other " * 99))], "mine"),
        ([("my.tex", WHOLE % b"mine"), ("b.tex", b"%auto-ignore\n" + WHOLE % (b"other " * 99))], "mine"),
        ([("a.tex", WHOLE % b"mine"), ("b.tex", WHOLE % b"other"), ("00README.XXX", b"a.tex toplevelfile")], "mine"),
        (
            [
                ("a.tex", WHOLE % b"mine"),
                ("main.tex", WHOLE % b"other"),
                ("00README.json", b'{"sources": [{"usage": "toplevel", "filename": "a.tex"}]}'),
            ],
            "mine",
        ),
        ([("a.tex", WHOLE % b"mine"), ("00README.json", b"[" * 100_000)], "mine"),
    ],
    ids=["with what it includes", "not included", "supplement", "ignored", "named", "named in JSON", "bad JSON"],
)
def test_the_main_file_of_a_paper_is_found(members, text):
    assert paper_of(members)["text"].split()[0] == text


@pytest.mark.parametrize(
    ("declared", "charset", "text"),
    [
        (r"\usepackage[cp1251]{inputenc}", "cp1251", "Ряд сходится"),
        (r"\usepackage[koi8-r]{inputenc}", "koi8-r", "Ряд сходится"),
        (r"\usepackage[latin2]{inputenc}", "iso8859-2", "Łódź"),
        (r"\usepackage[latin1]{inputenc}", "cp1252", "“Größe”"),
        (r"\begin{CJK*}{GBK}{song}", "gb18030", "级数收敛"),
        (r"\usepackage[nonsense]{inputenc}", "latin-1", "Größe"),
    ],
)
def test_files_are_decoded_by_what_the_paper_declares(declared, charset, text):
    members = [
        ("main.tex", rb"\documentclass{x}" + declared.encode() + rb"\begin{document}\input{a}\end{document}"),
        ("a.tex", text.encode(charset)),
    ]
    assert paper_of(members)["text"] == text


@pytest.mark.parametrize("declared", ["", "utf8", "ascii", "hex", "rot13", "utf-16", "idna"])
def test_a_byte_that_is_not_utf_8_costs_one_character(declared):
    source = rb"\documentclass{x}\usepackage[%s]{inputenc}\begin{document}%% by M%c" % (declared.encode(), 0xFC)
    assert paper_of([("main.tex", source + "\nGröße und Maß".encode() + rb"\end{document}")])["text"] == "Größe und Maß"


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        (gzip.compress(b"%auto-ignore\nThis paper has been withdrawn."), "withdrawn"),
        (gzip.compress(b"no commands at all"), "not LaTeX"),
        (gzip.compress(b"%PDF-1.4 x"), "not LaTeX"),
        (b"%PDF-1.4 x", "not LaTeX"),
        (gzip.compress(tar_bytes([("a.png", b"\x89PNG\0")])), "not LaTeX"),
        (gzip.compress(tar_bytes([("a.tex", b"%auto-ignore"), ("b.txt", b"%auto-ignore")])), "withdrawn"),
        (gzip.compress(make.paper(1).encode())[:-30], "truncated"),
        (gzip.compress(tar_bytes([("a.tex", make.paper(1).encode())])[:900]), "truncated"),
        (b"\x1f\x8b\x08 not gzip", "damaged"),
        (gzip.compress(bytes(2_100_000)), "larger than 2.0 MB when unpacked"),
        (gzip.compress(rb"\documentclass{a}\def\a{\b\b}\def\b{\a}\begin{document}\a"), "macros expand too far"),
        (gzip.compress(b"\\documentclass{a}\\begin{document}" + rb"\begin{b}" * 999), "nested deeper than 200"),
        (gzip.compress(rb"\documentclass{a}\begin{document}\end{document}"), "no text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_submissions_are_dropped_with_a_reason(data, outcome):
    assert convert(REQUEST, data)["outcome"] == outcome
