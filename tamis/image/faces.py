"""Faces: how many an image has, how much of it they cover, and blurring them."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column
from tamis.context import Context, file_key
from tamis.errors import ParameterError, TamisError, require
from tamis.image.boxes import BOX, box, covered
from tamis.image.decode import PictureStep, full_pictures, headers, pictures
from tamis.image.edit import renamed
from tamis.image.nsfw import find_parts
from tamis.image.onnx import ACTIVATION_BYTES, Graph, find_onnx
from tamis.models import onnx
from tamis.models.files import with_files
from tamis.operators import Filter, Map, Resources, Rule, Scores, between, operator

Detector: TypeAlias = Literal["haar", "nudenet"]
Find: TypeAlias = Callable[[np.ndarray], list[dict[str, Any]]]

SIDE = 256
"""Faces are searched in pictures with this short side; in larger ones, more faces are found where there are none."""

SMALLEST = 21
"""Faces with fewer pixels than this are not found; the cascade was trained on 20 x 20 (Lienhart and Maydt 2002)."""

SCALE, NEIGHBORS = 1.1, 3
"""Factor between sizes of the search window, and how many windows must agree."""

MARGIN = 8
"""The short side by the width of the margin around a picture, without which faces at its border are missed."""

CASCADE = "haarcascade_frontalface_alt.xml"
"""With a margin around the picture it finds as many faces as NudeNet (benchmarks/image_models.md)."""

HAAR_BYTES = 60_000_000
"""What OpenCV takes."""

FACES = ("FACE_FEMALE", "FACE_MALE")


class _FaceStep(PictureStep):
    """A step with a parameter `detector`."""

    cost = 1000.0

    @property
    def _detector(self) -> Detector:
        found: Detector = getattr(self, "detector", "haar")
        return found

    def check(self) -> None:
        if self._detector == "haar":
            _cascade_file()
        else:
            find_onnx(self._detector)

    def identity(self) -> dict[str, Any]:
        if self._detector == "haar":
            return super().identity()
        return with_files(super().identity(), find_onnx(self._detector))

    @property
    def resources(self) -> Resources:
        try:
            if self._detector == "haar":
                return Resources(shared={file_key("haar", _cascade_file()): HAAR_BYTES})
            found = find_onnx(self._detector)
        except TamisError:
            return Resources()
        size = onnx.RUNTIME_BYTES + 2 * found.num_bytes
        return Resources(memory=ACTIVATION_BYTES, shared={onnx.key_of(found): size})

    def finder(self, context: Context) -> Find:
        """A function from a picture to the boxes of its faces."""
        if self._detector == "haar":
            path = _cascade_file()
            return context.shared(file_key("haar", path), lambda: _Cascade(path)).find
        graph = Graph(onnx.shared_session(find_onnx(self._detector), context))
        return lambda picture: [each for each in find_parts(graph, picture) if each["label"] in FACES]


def _cascade_file() -> Any:
    from pathlib import Path

    cv2 = require("cv2", extra="image-models", purpose="finding faces")
    path = Path(str(cv2.data.haarcascades)) / CASCADE if hasattr(cv2, "data") else Path(CASCADE)
    if not path.is_file():
        raise TamisError(f"this version of OpenCV has no {CASCADE}", hint="pip install 'opencv-python-headless<5'")
    return path


class _Cascade:
    """The cascade of OpenCV, on one thread."""

    def __init__(self, path: Any) -> None:
        self._cv2 = require("cv2", extra="image-models", purpose="finding faces")
        self._cv2.setNumThreads(1)
        self._cascade = self._cv2.CascadeClassifier(str(path))

    def find(self, picture: np.ndarray) -> list[dict[str, Any]]:
        height, width = picture.shape[:2]
        if min(height, width) < SMALLEST:
            return []
        cv2, margin = self._cv2, min(height, width) // MARGIN
        gray = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
        gray = cv2.copyMakeBorder(gray, margin, margin, margin, margin, cv2.BORDER_REPLICATE)
        found, _, weights = self._cascade.detectMultiScale3(
            gray, SCALE, NEIGHBORS, minSize=(SMALLEST, SMALLEST), outputRejectLevels=True
        )
        if not len(found):
            return []
        weights = np.asarray(weights).reshape(-1)
        corners = np.asarray(found, np.float64)[:, [0, 1, 0, 1]] - margin
        corners[:, 2:] += np.asarray(found)[:, 2:]
        corners = np.clip(corners / np.array([width, height, width, height]), 0, 1)
        corners[:, 2:] -= corners[:, :2]
        order = np.lexsort((corners[:, 0], corners[:, 1], -weights))
        return [box("FACE", float(weights[each]), corners[each]) for each in order]


@operator(reads="image", writes=("num_faces", "face_share", "faces"))
class Faces(_FaceStep, Filter):
    """Keep images by the number of faces and the share of the area that they cover.

    detector    method                                                         needs
    haar        cascade of OpenCV (Viola and Jones 2001): upright frontal       `tamis[image,image-models]`
                faces
    nudenet     the face classes of `BodyParts`, also faces from the side; see  `tamis[image,onnx]`, and the file of `BodyParts`
                there for its licence

    Of 30 portraits, both found the face in 29; of 100 pictures without faces, they found some in 1 and in 3. Faces
    smaller than a twelfth of the short side are not found. There are no bounds by default; `faces` lists the boxes. A row
    without image is dropped if there is a bound. About 25 images per second and core.

        Faces(max_faces=0)
    """

    detector: Detector = "haar"
    column: str = "image"
    min_faces: int | None = None
    max_faces: int | None = None
    min_share: float | None = None
    max_share: float | None = None

    @property
    def adds_scores(self) -> bool:
        return True

    def check(self) -> None:
        super().check()
        if not self.rules() and not self.score_only:
            raise ParameterError(
                f"`{self.name}` has no bounds", hint="set max_faces, or score_only=True to add the scores only"
            )

    def open(self, context: Context) -> _FaceScorer:
        return _FaceScorer(self.finder(context))

    def rules(self) -> list[Rule]:
        rules = []
        if self.min_faces is not None or self.max_faces is not None:
            rules.append(between("num_faces", self.min_faces, self.max_faces))
        if self.min_share is not None or self.max_share is not None:
            rules.append(between("face_share", self.min_share, self.max_share))
        return rules


class _FaceScorer:
    def __init__(self, find: Find) -> None:
        self._find = find

    def score(self, batch: Batch) -> Scores:
        found = [None if picture is None else self._find(picture) for picture in pictures(batch, "image", SIDE)]
        places = [None if faces is None else [_place(face) for face in faces] for faces in found]
        return {
            "num_faces": pa.array([None if each is None else len(each) for each in found], pa.int64()),
            "face_share": pa.array([None if each is None else covered(each) for each in places], pa.float64()),
            "faces": pa.array(found, pa.list_(BOX)),
        }


def _place(face: dict[str, Any]) -> np.ndarray:
    return np.array([face[name] for name in ("x", "y", "width", "height")])


# -------------------------------------------------------------------------------------------------------------- blurring

WRITTEN = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF")


@operator(reads="image", writes=("image", "num_blurred"))
class BlurFaces(_FaceStep, Map):
    """Blur the faces in each image; `num_blurred` is their number. Images without faces stay as they are, byte for byte.

    Each face that the `detector` of `Faces` finds is blurred in an ellipse that is `margin` larger than its box, so
    strongly that a third of its width is averaged. The image is written in the format it had, JPEG and WebP with
    `quality`, without metadata, upright and in sRGB; AVIF, JPEG 2000, ICO, PPM and QOI become PNG. Of an animation or a
    file with several pages, only the first frame is searched, and only that is kept if it has faces; `ImageFrames`
    makes a row of each. Faces smaller than a twelfth of the short side are not found. Faces that are not found stay
    visible, so check a sample. Needs `tamis[image,image-models]`.

        BlurFaces(quality=95)
    """

    detector: Detector = "haar"
    column: str = "image"
    margin: float = 0.2
    quality: int = 92

    def check(self) -> None:
        super().check()
        require("cv2", extra="image-models", purpose="blurring faces")
        if not 1 <= self.quality <= 100:
            raise ParameterError(f"`quality` must be from 1 to 100, got {self.quality}")
        if self.margin < 0:
            raise ParameterError(f"`margin` must not be negative, got {self.margin}")

    def writes(self) -> tuple[str, ...]:
        return (self.column, "num_blurred")

    def open(self, context: Context) -> _Blurrer:
        return _Blurrer(self, self.finder(context))


class _Blurrer:
    def __init__(self, step: BlurFaces, find: Find) -> None:
        self._step, self._find = step, find

    def apply(self, batch: Batch) -> dict[str, Column]:
        found = [None if picture is None else self._find(picture) for picture in pictures(batch, "image", SIDE)]
        column = batch["image"]
        if any(found):
            column = self._blurred(batch, found)
        counts = pa.array([None if faces is None else len(faces) for faces in found], pa.int64())
        return {self._step.column: column, "num_blurred": counts}

    def _blurred(self, batch: Batch, found: list[list[dict[str, Any]] | None]) -> Column:
        rows = batch["image"].to_pylist()
        formats = headers(batch, "image").format
        wanted = np.array([bool(faces) for faces in found], np.bool_)
        full = full_pictures(batch.select(wanted), "image")
        for row in np.flatnonzero(wanted):
            picture = next(full)
            assert picture is not None
            blurred = blur(picture, [_place(face) for face in found[row] or []], self._step.margin)
            kind = formats[row] if formats[row] in WRITTEN else "PNG"
            made = encode(blurred, kind, self._step.quality)
            rows[row] = {"bytes": made, "path": renamed(rows[row]["path"], kind)}
        return pa.array(rows, batch["image"].type)


def blur(picture: np.ndarray, places: list[np.ndarray], margin: float) -> np.ndarray:
    """A picture in which ellipses around these boxes are blurred."""
    cv2 = require("cv2", extra="image-models", purpose="blurring faces")
    out = picture.copy()
    rows, columns = picture.shape[:2]
    for x, y, width, height in places:
        center = (round((x + width / 2) * columns), round((y + height / 2) * rows))
        axes = (max(1, round(width * columns * (0.5 + margin / 2))), max(1, round(height * rows * (0.5 + margin / 2))))
        top, bottom = max(0, center[1] - axes[1]), min(rows, center[1] + axes[1] + 1)
        left, right = max(0, center[0] - axes[0]), min(columns, center[0] + axes[0] + 1)
        part = out[top:bottom, left:right]
        mask = np.zeros(part.shape[:2], np.uint8)
        cv2.ellipse(mask, (center[0] - left, center[1] - top), axes, 0, 0, 360, 255, -1)
        soft = cv2.GaussianBlur(part, (0, 0), max(2.0, axes[0] / 3))
        out[top:bottom, left:right] = np.where(mask[:, :, None] > 0, soft, part)
    return out


def encode(picture: np.ndarray, kind: str, quality: int) -> bytes:
    """A picture as a file of one of the formats in `WRITTEN`."""
    images = require("PIL.Image", extra="image", purpose="writing images")
    target = io.BytesIO()
    options = {"quality": quality} if kind in ("JPEG", "WEBP") else {}
    images.fromarray(picture).save(target, kind, **options)
    return target.getvalue()
