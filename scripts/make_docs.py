"""Generate docs/operators.md, docs/operators/*.md and docs/sources.md from the operators and their speed, the schema of
recipes, and the files of make_names.py.

python scripts/make_docs.py            tests/test_docs.py fails if a page is out of date
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":  # first, because the import of the registry reads what it writes
    import make_names

    make_names.main()

from tamis.operators import Filter, Gather, Operator
from tamis.recipes.schema import COMMENT, FILE_NAME, own_operators, schema_text
from tamis.registry import describe_parameters
from tamis.rules import Rule

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SPEEDS = ROOT / "benchmarks" / "operators.json"
SECTIONS = {  # page: title, packages
    "text": ("Text", {"text", "web"}),
    "images": ("Images", {"image"}),
    "sound": ("Sound", {"audio"}),
    "video": ("Video", {"video"}),
    "deduplication": ("Deduplication and selection", {"dedup", "sampling"}),
    "sources": ("Sources", {"sources"}),
    "sinks": ("Sinks", {"sinks"}),
    "rows": ("Rows and fields", set()),
}
MEASURED_IN = {  # what benchmarks/operators.py does not measure by itself
    **dict.fromkeys(("substring_dedup", "sentence_dedup", "paragraph_dedup"), "spans"),
    **dict.fromkeys(("html_extract", "warc_reader", "wikitext_extract", "mediawiki_reader"), "crawl"),
    **dict.fromkeys(("pdf_extract", "latex_extract", "document_extract", "document_reader"), "documents"),
    **dict.fromkeys(("jsonl_reader", "jsonl_writer", "parquet_reader", "parquet_writer"), "engine"),
    **dict.fromkeys(("ask", "ask_rows", "ask_score"), "llm"),
    **{
        "semantic_dedup": "semantic",
        "shuffle": "shuffle",
        "token_writer": "tokens",
        "linear_classifier": "text_models",
    },
}
CITED = re.compile(r"([A-ZÀ-Ž][\w-]+(?: et al\.| and [A-ZÀ-Ž][\w-]+)?) ((?:19|20)\d\d)\b")
PUBLICATIONS = {
    "Abbas et al. 2023": "SemDeDup: Data-efficient learning at web-scale through semantic deduplication. "
    "arXiv:2303.09540",
    "Allal et al. 2025": "SmolLM2: When Smol Goes Big - Data-Centric Training of a Small Language Model. "
    "arXiv:2502.02737",
    "Arivazhagan et al. 2019": "Massively Multilingual Neural Machine Translation in the Wild: Findings and Challenges. "
    "arXiv:1907.05019",
    "Bahmani et al. 2012": "Scalable K-Means++. PVLDB 5(7). arXiv:1203.6402",
    "Barbaresi 2021": "Trafilatura: A Web Scraping Library and Command-Line Tool for Text Discovery and Extraction. "
    "ACL-IJCNLP, system demonstrations",
    "Bevendorff et al. 2018": "Elastic ChatNoir: Search Engine for the ClueWeb and the Common Crawl. ECIR",
    "Broder 1997": "On the resemblance and containment of documents. Compression and Complexity of SEQUENCES",
    "Brown et al. 2020": "Language Models are Few-Shot Learners. arXiv:2005.14165",
    "Chen et al. 2021": "Evaluating Large Language Models Trained on Code. arXiv:2107.03374",
    "Chowdhery et al. 2022": "PaLM: Scaling Language Modeling with Pathways. arXiv:2204.02311",
    "Conneau et al. 2020": "Unsupervised Cross-lingual Representation Learning at Scale. ACL. arXiv:1911.02116",
    "Dalins et al. 2019": "PDQ & TMK + PDQF: A Test Drive of Facebook's Perceptual Hashing Algorithms. "
    "arXiv:1912.07745",
    "Davidson et al. 2017": "Automated Hate Speech Detection and the Problem of Offensive Language. ICWSM. "
    "arXiv:1703.04009",
    "Ding et al. 2024": "Fewer Truncations Improve Language Modeling. arXiv:2404.10830",
    "Doukhan et al. 2018": "An Open-Source Speaker Gender Detection Framework for Monitoring Gender Equality. ICASSP",
    "Gadre et al. 2023": "DataComp: In search of the next generation of multimodal datasets. arXiv:2304.14108",
    "Ghosh et al. 2024": "AEGIS: Online Adaptive AI Content Safety Moderation with Ensemble of LLM Experts. "
    "arXiv:2404.05993",
    "Gonzalez 1985": "Clustering to minimize the maximum intercluster distance. Theoretical Computer Science 38",
    "Haitsma and Kalker 2002": "A Highly Robust Audio Fingerprinting System. ISMIR",
    "Jeffries et al. 2024": "Moonshine: Speech Recognition for Live Transcription and Voice Commands. arXiv:2410.15608",
    "Joulin et al. 2017": "Bag of Tricks for Efficient Text Classification. EACL. arXiv:1607.01759",
    "Kocetkov et al. 2022": "The Stack: 3 TB of permissively licensed source code. arXiv:2211.15533",
    "Kohlschuetter et al. 2010": "Boilerplate Detection using Shallow Text Features. WSDM",
    "Kudugunta et al. 2023": "MADLAD-400: A Multilingual And Document-Level Large Audited Dataset. arXiv:2309.04662",
    "Kürzinger et al. 2020": "CTC-Segmentation of Large Corpora for German End-to-end Speech Recognition. "
    "arXiv:2007.09127",
    "Laurençon et al. 2022": "The BigScience ROOTS Corpus: A 1.6TB Composite Multilingual Dataset. NeurIPS. "
    "arXiv:2303.03915",
    "Lee et al. 2022": "Deduplicating Training Data Makes Language Models Better. ACL. arXiv:2107.06499",
    "Li et al. 2023": "StarCoder: may the source be with you! arXiv:2305.06161",
    "Li et al. 2024": "DataComp-LM: In search of the next generation of training sets for language models. "
    "arXiv:2406.11794",
    "Mahadeokar and Pesavento 2016": "Open Sourcing a Deep Learning Solution for Detecting NSFW Images. "
    "Yahoo Engineering",
    "Mittal et al. 2012": "No-Reference Image Quality Assessment in the Spatial Domain. "
    "IEEE Transactions on Image Processing 21(12)",
    "Norouzi et al. 2012": "Fast Search in Hamming Space with Multi-Index Hashing. CVPR",
    "Pech-Pacheco et al. 2000": "Diatom autofocusing in brightfield microscopy: a comparative study. ICPR",
    "Penedo et al. 2024": "The FineWeb Datasets: Decanting the Web for the Finest Text Data at Scale. arXiv:2406.17557",
    "Radford et al. 2022": "Robust Speech Recognition via Large-Scale Weak Supervision. arXiv:2212.04356",
    "Rae et al. 2021": "Scaling Language Models: Methods, Analysis & Insights from Training Gopher. arXiv:2112.11446",
    "Raffel et al. 2020": "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer. "
    "arXiv:1910.10683",
    "Reddy et al. 2021": "DNSMOS: A Non-Intrusive Perceptual Objective Speech Quality metric to evaluate Noise "
    "Suppressors. ICASSP. "
    "arXiv:2010.15258",
    "Reddy et al. 2022": "DNSMOS P.835: A Non-Intrusive Perceptual Objective Speech Quality Metric to evaluate "
    "Noise Suppressors. ICASSP. "
    "arXiv:2110.01763",
    "Rombach et al. 2022": "High-Resolution Image Synthesis with Latent Diffusion Models. CVPR. arXiv:2112.10752",
    "Schuhmann et al. 2022": "LAION-5B: An open large-scale dataset for training next generation image-text models. "
    "arXiv:2210.08402",
    "Souček and Lokoč 2020": "TransNet V2: An effective deep network architecture for fast shot transition detection. "
    "arXiv:2008.04838",
    "Su et al. 2024": "Nemotron-CC: Transforming Common Crawl into a Refined Long-Horizon Pretraining Dataset. "
    "arXiv:2412.02595",
    "Viola and Jones 2001": "Rapid Object Detection using a Boosted Cascade of Simple Features. CVPR",
    "Wan et al. 2018": "Generalized End-to-End Loss for Speaker Verification. ICASSP. arXiv:1710.10467",
    "Wenzek et al. 2020": "CCNet: Extracting High Quality Monolingual Datasets from Web Crawl Data. LREC. "
    "arXiv:1911.00359",
    "Xue et al. 2021": "mT5: A Massively Multilingual Pre-trained Text-to-Text Transformer. NAACL. arXiv:2010.11934",
    "Zauner 2010": "Implementation and Benchmarking of Perceptual Image Hash Functions. Thesis, Hagenberg",
}
"""What docstrings cite as "Authors year". Titles are as others cite them, checked against several bibliographies each."""


def section_of(cls: type[Operator]) -> str:
    package = cls.__module__.split(".")[1]
    return next((page for page, (_, packages) in SECTIONS.items() if package in packages), "rows")


def public_package(cls: type[Operator]) -> str:
    """The shortest package that exports a class: tamis.text for a class of tamis.text.quality."""
    parents = itertools.accumulate(cls.__module__.split("."), "{}.{}".format)
    exporting = (name for name in parents if cls.__name__ in getattr(importlib.import_module(name), "__all__", ()))
    return next(exporting, cls.__module__)


def as_markdown(docstring: str) -> str:
    """A docstring with its examples and its tables, columns aligned by spaces, in code blocks: Markdown would join them."""
    blocks: list[tuple[str, str]] = []
    for paragraph in re.split(r"\n\s*\n", docstring):
        if paragraph.startswith(">>>"):
            blocks.append(("pycon", paragraph))
            continue
        lines = paragraph.splitlines()
        aligned = [number for number, line in enumerate(lines) if re.search(r"\S {2,}\S", line)]
        if len(aligned) < 2:
            blocks.append(("", paragraph))
            continue
        if aligned[0]:
            blocks.append(("", "\n".join(lines[: aligned[0]])))
        blocks.append(("text", "\n".join(lines[aligned[0] :])))
    return "\n\n".join(f"```{language}\n{text}\n```" if language else text for language, text in blocks)


def cited(docstring: str) -> list[str]:
    """The publications that a docstring names, in order."""
    joined = " ".join(docstring.replace(",", "").split())
    found = [f"{authors} {year}" for authors, year in CITED.findall(joined)]
    if unknown := [name for name in found if " et al." in name and name not in PUBLICATIONS]:
        raise SystemExit(f"add to PUBLICATIONS: {', '.join(unknown)}")
    return list(dict.fromkeys(name for name in found if name in PUBLICATIONS))


def condition(rule: Rule) -> str:
    bounds = ((">=", rule.minimum), ("<=", rule.maximum), ("<", rule.below))
    parts = [f"`{rule.score} {sign} {bound:,.10g}`" for sign, bound in bounds if bound is not None]
    if rule.allowed is not None:
        parts.append(f"`{rule.score}` is one of {', '.join(f'`{name}`' for name in rule.allowed)}")
    return " and ".join(parts)


def rules(cls: type[Operator]) -> str:
    """What a filter requires with its default parameters."""
    if not issubclass(cls, Filter) or any(parameter["required"] for parameter in describe_parameters(cls)):
        return ""
    conditions = [text for rule in cls().rules() if (text := condition(rule))]
    return f"Keeps rows with {', '.join(conditions)}." if conditions else ""


def speed(name: str, cls: type[Operator], speeds: dict[str, dict[str, float | str]]) -> str:
    """The measured rate, as "35 MB/s": empty if it was not measured."""
    found = speeds.get(name)
    if found is None:
        return ""
    rate, unit = float(found["rate"]), str(found["unit"])
    if unit == "MB/s" and rate < 1:
        rate, unit = float(found["rows_per_s"]), "documents/s"
    if unit == "MB/s" and rate > 2000:
        return "over 2,000 MB/s"
    return f"{rate:,.0f} {unit}" if rate >= 10 else f"{rate:.2g} {unit}"


def elsewhere(name: str) -> str:
    """A link to the page that measures an operator in other ways."""
    page = MEASURED_IN.get(name)
    return f"[{page}](../benchmarks/{page}.md)" if page else ""


def entry(name: str, cls: type[Operator], speeds: dict[str, dict[str, float | str]]) -> str:
    docstring = (inspect.getdoc(cls) or "").rstrip()
    lines = [f"## {name}", "", f"*{cls.kind}*, `from {public_package(cls)} import {cls.__name__}`", ""]
    lines += [as_markdown(docstring), ""]
    facts = []
    if required := rules(cls):
        facts.append(f"- **Rules.** {required}")
    if publications := cited(docstring):
        links = ", ".join(f"[{entry}](../sources.md#{anchor(entry)})" for entry in publications)
        facts.append(f"- **Source.** {links}")
    if measured := speed(name, cls, speeds):
        part = ", pass over the rows" if issubclass(cls, Gather) else ""
        facts.append(
            f"- **Speed.** {measured} on one core{part} ([benchmarks/operators.md](../../benchmarks/operators.md))."
        )
    elif page := MEASURED_IN.get(name):
        facts.append(f"- **Speed.** [benchmarks/{page}.md](../../benchmarks/{page}.md).")
    lines += [*facts, ""] if facts else []
    parameters = describe_parameters(cls)
    if parameters:
        lines += ["| parameter | type | default |", "|---|---|---|"]
        for parameter in parameters:
            default = "required" if parameter["required"] else f"`{parameter['default']!r}`"
            cells = (f"`{parameter['name']}`", str(parameter["type"]), default)
            lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", "\\n") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def anchor(title: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def summary(cls: type[Operator]) -> str:
    first = re.split(r"(?<=\.)(?<! al\.)\s|\n\s*\n", inspect.getdoc(cls) or "", maxsplit=1)[0]
    return " ".join(first.split()).replace("|", "\\|")


def pages() -> Iterator[tuple[Path, str]]:
    """Every generated page with its text."""
    ours = own_operators()
    speeds = json.loads(SPEEDS.read_text(encoding="utf-8"))["operators"] if SPEEDS.exists() else {}
    note = "Generated by `scripts/make_docs.py`; `tamis ops NAME` prints the same for one operator."
    index = [
        "# Operators",
        "",
        f"{len(ours)} operators. {note} Speeds are of one core ([benchmarks/operators.md](../benchmarks/operators.md)).",
        "A link leads to the page that measures an operator in other ways. Without either, it was not measured: mostly models",
        "that have to be downloaded, and formats that are rarely the bottleneck.",
        "",
    ]
    for page, (title, _) in SECTIONS.items():
        members = {name: cls for name, cls in ours.items() if section_of(cls) == page}
        index += [f"## {title}", "", "| operator | kind | effect | speed |", "|---|---|---|---|"]
        index += [
            f"| [{name}](operators/{page}.md#{anchor(name)}) | {cls.kind} | {summary(cls)} "
            f"| {speed(name, cls, speeds) or elsewhere(name)} |"
            for name, cls in members.items()
        ]
        index.append("")
        entries = [entry(name, cls, speeds) for name, cls in members.items()]
        yield DOCS / "operators" / f"{page}.md", "\n".join([f"# Operators: {title.lower()}", "", note, "", *entries])
    yield DOCS / "operators.md", "\n".join(index)
    yield DOCS / "sources.md", publications_page(ours)


def publications_page(ours: dict[str, type[Operator]]) -> str:
    users: dict[str, list[str]] = {}
    for name, cls in ours.items():
        for publication in cited(inspect.getdoc(cls) or ""):
            users.setdefault(publication, []).append(f"[{name}](operators/{section_of(cls)}.md#{anchor(name)})")
    lines = [
        "# Publications",
        "",
        "What operators and their defaults are taken from. Generated by `scripts/make_docs.py`.",
        "",
    ]
    for publication in sorted(users):
        title = re.sub(r"arXiv:([\d.]+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", PUBLICATIONS[publication])
        lines += [f"## {publication}", "", f"{title}.", "", f"Used by {', '.join(users[publication])}.", ""]
    return "\n".join(lines)


def main() -> None:
    (DOCS / "operators").mkdir(exist_ok=True)
    current = dict(pages())
    for old in (DOCS / "operators").glob("*.md"):
        if old not in current:
            old.unlink()
    for path, text in current.items():
        path.write_text(text, encoding="utf-8")
    recipes = ROOT / "tamis" / "recipes"
    (recipes / FILE_NAME).write_text(schema_text(own_operators()), encoding="utf-8")
    for recipe in recipes.glob("*.yaml"):
        text = recipe.read_text(encoding="utf-8")
        if not text.startswith(COMMENT):
            recipe.write_text(COMMENT + text, encoding="utf-8")


if __name__ == "__main__":
    main()
