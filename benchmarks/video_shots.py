"""Shots of real videos against cuts found by eye: precision and recall of both detectors.

    python benchmarks/video_shots.py FOLDER [--transnet]

FOLDER has the files below, in any folder within it; see benchmarks/video.md for the packages that have them. A cut is the
number of the frame that begins a shot. Cuts were read off sheets of frames, and then off the two frames before and after each.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tamis.media import MediaAccess, MediaItem
from tamis.models.files import IMAGE_DEFAULTS, find
from tamis.models.transnet import HEIGHT, WIDTH, TransNet, Windows, scenes
from tamis.video.decode import decode_track
from tamis.video.files import Frame
from tamis.video.split import histogram_cuts

CUTS = {
    "test.mp4#t=0,40": [
        2, 17, 24, 50, 61, 103, 132, 186, 199, 219, 236, 261, 282, 301, 371, 435, 456, 573, 613, 665, 695, 724, 761, 777, 800,
        830, 865, 908, 943, 961, 990,
    ],
    "tailor.mp4": [30, 70, 102, 120, 157, 182, 213, 236, 308, 372, 439, 504, 559, 583, 608, 645, 682, 714],
    "bikes.mp4": [30, 76, 137, 187, 242],
    "Megamind.avi": [1, 98, 154, 200],
    "video.mp4": [285, 378, 553],
    "minions.mp4": [456, 458],
}  # fmt: skip


class Watcher:
    def __init__(self, network: TransNet) -> None:
        self.windows = Windows(network)

    def see(self, frame: Frame) -> None:
        self.windows.add(frame.rgb(WIDTH, HEIGHT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--transnet", action="store_true")
    options = parser.parse_args()
    network = TransNet(find("transnetv2", (), IMAGE_DEFAULTS)) if options.transnet else None
    totals: dict[str, list[int]] = {}
    for name, cuts in CUTS.items():
        file, _, part = name.partition("#")
        path = str(next(options.folder.rglob(file)))
        item = MediaItem(path + (f"#{part}" if part else ""), path, MediaAccess())
        watcher = Watcher(network) if network is not None else None
        track = decode_track(item, None if watcher is None else lambda header, seen=watcher: seen)
        found = {"Shots": histogram_cuts(track).tolist()}
        if watcher is not None:
            found["TransNetShots"] = [first for first, _ in scenes(watcher.windows.probabilities(), 0.4)][1:]
        for detector, list_of in found.items():
            right = [cut for cut in list_of if any(abs(cut - each) <= 1 for each in cuts)]
            sums = totals.setdefault(detector, [0, 0, 0])
            for place, number in enumerate((len(right), len(list_of), len(cuts))):
                sums[place] += number
            wrong, missed = sorted(set(list_of) - set(right)), [c for c in cuts if all(abs(c - e) > 1 for e in list_of)]
            sys.stdout.write(
                f"{file:14} {detector:14} {len(right)} of {len(cuts)} cuts; wrong {wrong}, missed {missed}\n"
            )
            sys.stdout.flush()
    for detector, (right, given, wanted) in totals.items():
        sys.stdout.write(f"{detector}: precision {right / max(1, given):.3f}, recall {right / wanted:.3f}\n")


if __name__ == "__main__":
    main()
