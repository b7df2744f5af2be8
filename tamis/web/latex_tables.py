"""What commands of LaTeX mean: symbols, accents, arguments that are no text, environments."""

# ruff: noqa: RUF001  quotation marks and dashes are what this file is about

from __future__ import annotations

SYMBOLS = {
    "\\ss": "ß", "\\o": "ø", "\\O": "Ø", "\\l": "ł", "\\L": "Ł", "\\ae": "æ", "\\AE": "Æ", "\\oe": "œ", "\\OE": "Œ",
    "\\aa": "å", "\\AA": "Å", "\\i": "i", "\\j": "j", "\\dh": "ð", "\\DH": "Ð", "\\th": "þ", "\\TH": "Þ", "\\dj": "đ",
    "\\DJ": "Đ", "\\ng": "ŋ", "\\NG": "Ŋ",
    "\\ldots": "…", "\\dots": "…", "\\textellipsis": "…", "\\S": "§", "\\P": "¶", "\\dag": "†", "\\ddag": "‡",
    "\\copyright": "©", "\\textcopyright": "©", "\\textregistered": "®", "\\texttrademark": "™", "\\pounds": "£",
    "\\euro": "€", "\\texteuro": "€", "\\textdegree": "°", "\\textendash": "–", "\\textemdash": "—",
    "\\textquoteleft": "‘", "\\textquoteright": "’", "\\textquotedblleft": "“", "\\textquotedblright": "”",
    "\\textbackslash": "\\", "\\textasciitilde": "~", "\\textasciicircum": "^", "\\textbar": "|", "\\textless": "<",
    "\\textgreater": ">", "\\textunderscore": "_", "\\textdollar": "$", "\\textbullet": "•", "\\textmu": "µ",
    "\\lq": "‘", "\\rq": "’", "\\guillemotleft": "«", "\\guillemotright": "»", "\\slash": "/",
    "\\LaTeX": "LaTeX", "\\TeX": "TeX", "\\LaTeXe": "LaTeX2e", "\\BibTeX": "BibTeX", "\\eg": "e.g.", "\\ie": "i.e.",
    "\\&": "&", "\\%": "%", "\\$": "$", "\\#": "#", "\\_": "_", "\\{": "{", "\\}": "}", "\\ ": " ", "\\,": " ", "\\;": " ",
    "\\:": " ", "\\!": "", "\\-": "", "\\/": "", "\\@": "", "\\\n": " ", "\\>": " ",
    "\\quad": " ", "\\qquad": " ", "\\space": " ", "\\enspace": " ", "\\thinspace": " ", "\\hfill": " ", "\\hfil": " ",
    "\\newline": "\n", "\\linebreak": "\n", "\\\\": "\n", "\\\\*": "\n", "\\tabularnewline": "\n", "\\cr": "\n",
}  # fmt: skip

ACCENTS = {
    "\\'": "\u0301", "\\`": "\u0300", "\\^": "\u0302", '\\"': "\u0308", "\\~": "\u0303", "\\=": "\u0304", "\\.": "\u0307",
    "\\c": "\u0327", "\\v": "\u030c", "\\u": "\u0306", "\\H": "\u030b", "\\k": "\u0328", "\\r": "\u030a", "\\d": "\u0323",
    "\\b": "\u0331", "\\t": "\u0361",
}  # fmt: skip

HEADINGS = {
    "\\part": 1, "\\chapter": 1, "\\section": 2, "\\subsection": 3, "\\subsubsection": 4, "\\paragraph": 5,
    "\\subparagraph": 6, "\\frametitle": 2, 
}  # fmt: skip

STYLES = {
    "\\textbf": "**", "\\emph": "*", "\\textit": "*", "\\textsl": "*", "\\texttt": "`", "\\path": "`", "\\code": "`",
}  # fmt: skip
"""Commands with an argument, and what Markdown puts around it."""


def _names(text: str) -> list[str]:
    return text.split()


_ONE = _names("""
    cite citep citet citealt citealp citeauthor citeyear citeyearpar citenum Cite Citep Citet parencite textcite autocite
    footcite nocite onlinecite refcite citetalias supercite shortcite ref eqref pageref autoref cref Cref vref nameref label
    index glossary bibliography bibliographystyle addbibresource documentclass documentstyle RequirePackage includegraphics
    epsfig epsfbox psfig includepdf vspace hspace pagestyle thispagestyle pagenumbering hypersetup geometry graphicspath
    DeclareGraphicsExtensions captionsetup lstset tikzset pgfplotsset usetikzlibrary usepgfplotslibrary theoremstyle color
    author affiliation address email institute date thanks altaffiliation affil orcid keywords pacs subjclass received
    accepted published preprint runningtitle runningauthor titlerunning authorrunning offprints institution editor
    acmConference acmBooktitle acmPrice acmISBN acmDOI ccsdesc setcopyright copyrightyear acmYear shorttitle shortauthors
    phantom hphantom vphantom enlargethispage stepcounter refstepcounter noalign cline cmidrule hyphenation bibitem bibinfo
    bibfield newcounter newlength newsavebox selectlanguage markright fancyhf rhead lhead cfoot chead lfoot rfoot special
    message typeout tag marginpar todo inst numberwithin setmainfont lstinputlisting verbatiminput Description
    tcbuselibrary tcbset
""")
_TWO = _names("""
    setlength addtolength setcounter addtocounter fontsize settowidth markboth rule setkeys colorlet newcolumntype
    lstdefinestyle pdfbookmark newfont inputminted lstdefinelanguage newtcblisting newtcolorbox newminted
""")
DROPPED = {
    **dict.fromkeys(_ONE, 1),
    **dict.fromkeys(_TWO, 2),
    **dict.fromkeys(
        _names("""
    definecolor addcontentsline DeclareFontFamily lstnewenvironment DefineVerbatimEnvironment DeclareTCBListing NewTCBListing
    """),
        3,
    ),
    **dict.fromkeys(["titlespacing", "DeclareMathSymbol"], 4),
    **dict.fromkeys(["DeclareMathAlphabet", "titleformat", "DeclareSymbolFont"], 5),
    **dict.fromkeys(["SetMathAlphabet", "DeclareFontShape"], 6),
}
"""Commands whose arguments are no text, and how many they have."""

FIRST_DROPPED = {
    "textcolor": 1, "colorbox": 1, "fcolorbox": 2, "resizebox": 2, "scalebox": 1, "rotatebox": 1, "raisebox": 1,
    "multicolumn": 2, "multirow": 2, "parbox": 1, "makebox": 0, "framebox": 0, "hypertarget": 1, "hyperref": 0,
    "hyperlink": 1, "foreignlanguage": 1, "texorpdfstring": 0, "adjustbox": 1, "href": 1,
}  # fmt: skip
"""Commands of which only the last argument is text, and how many arguments precede it."""

MATH = frozenset(
    _names("""
    math displaymath equation equation* align align* aligned alignat alignat* eqnarray eqnarray* gather gather* multline
    multline* flalign flalign* split dmath dmath* IEEEeqnarray IEEEeqnarray* empheq numcases xalignat
""")
)
NOT_IN_FORMULAS = frozenset(
    [f"\\{name}" for name in _names("nonumber notag ensuremath xspace displaystyle expandafter protect relax noexpand")]
)
"""Commands that say nothing about a formula."""
DROPPED_ENVIRONMENTS = frozenset(
    _names("""
    thebibliography references comment tikzpicture pgfpicture picture asy filecontents filecontents* CCSXML keywords
    IEEEkeywords biblist bibdiv thenomenclature pspicture psfigure feynmandiagram fmffile tikzcd
""")
)
HIDDEN_CODE = frozenset(_names("comment filecontents filecontents*"))
CODE = HIDDEN_CODE | frozenset(
    _names("""
    verbatim verbatim* Verbatim Verbatim* BVerbatim LVerbatim SaveVerbatim spverbatim lstlisting minted alltt tcblisting
    tcboutputlisting LTXexample macrocode macrocode* sageblock pycode pyconsole
    """)
)
"""Environments in which nothing is LaTeX."""
FLOATS = frozenset(_names("figure figure* table table* wrapfigure wraptable sidewaystable sidewaysfigure SCfigure"))
TABLES = frozenset(_names("tabular tabular* tabularx tabulary longtable supertabular tabu deluxetable"))
LISTS = frozenset(_names("itemize enumerate description compactitem compactenum inparaenum asparaenum list trivlist"))
WITH_LENGTH = frozenset(
    _names("""
    kern hskip vskip mkern mskip raise lower hangindent parindent parskip baselineskip textwidth textheight topmargin
    oddsidemargin evensidemargin leftskip rightskip headheight headsep footskip columnsep hsize vsize tabcolsep arraycolsep
    """)
)
"""Primitives and lengths of TeX, which a length follows."""
CONDITIONS = frozenset(
    _names("""
    if ifx ifnum ifdim ifodd ifcase ifcat ifmmode ifvmode ifhmode ifinner iftrue iffalse ifdefined ifcsname ifeof ifvoid
    ifhbox ifvbox
    """)
)
"""Conditions of TeX."""

UNITS = {
    "yocto": "y", "zepto": "z", "atto": "a", "femto": "f", "pico": "p", "nano": "n", "micro": "µ", "milli": "m", "centi": "c",
    "deci": "d", "hecto": "h", "kilo": "k", "mega": "M", "giga": "G", "tera": "T", "peta": "P", "exa": "E",
    "metre": "m", "meter": "m", "gram": "g", "second": "s", "ampere": "A", "kelvin": "K", "mole": "mol", "candela": "cd",
    "hertz": "Hz", "newton": "N", "pascal": "Pa", "joule": "J", "watt": "W", "coulomb": "C", "volt": "V", "farad": "F",
    "ohm": "Ω", "siemens": "S", "weber": "Wb", "tesla": "T", "henry": "H", "lumen": "lm", "lux": "lx", "becquerel": "Bq",
    "gray": "Gy", "sievert": "Sv", "katal": "kat", "radian": "rad", "steradian": "sr", "celsius": "°C",
    "degreeCelsius": "°C", "degree": "°", "arcminute": "′", "arcsecond": "″", "minute": "min", "hour": "h", "day": "d",
    "litre": "L", "liter": "L", "tonne": "t", "hectare": "ha", "electronvolt": "eV", "dalton": "Da", "bel": "B",
    "decibel": "dB", "percent": "%", "angstrom": "Å", "bar": "bar", "barn": "b", "byte": "B", "bit": "bit", "parsec": "pc",
    "astronomicalunit": "au", "kilogram": "kg", "kg": "kg", "cm": "cm", "mm": "mm", "km": "km", "um": "µm", "nm": "nm",
    "m": "m", "s": "s", "ms": "ms", "us": "µs", "ns": "ns", "Hz": "Hz", "kHz": "kHz", "MHz": "MHz", "GHz": "GHz", "eV": "eV",
    "keV": "keV", "MeV": "MeV", "GeV": "GeV", "TeV": "TeV", "V": "V", "mV": "mV", "A": "A", "mA": "mA", "W": "W", "kW": "kW",
    "K": "K", "Pa": "Pa", "kPa": "kPa", "N": "N", "g": "g", "mg": "mg", "J": "J", "kJ": "kJ", "mol": "mol", "dB": "dB",
    "squared": "²", "cubed": "³", "square": "", "cubic": "", "per": "/",
}  # fmt: skip
"""What commands of siunitx print within an argument that is a unit."""
