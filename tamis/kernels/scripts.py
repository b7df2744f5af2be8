"""Detect the script of a text from its letters.

A letter has the script of the range it is in. The ranges follow the Script property of Unicode 14 (UAX #24); letters shared by
several scripts are assigned to the surrounding range. Script codes are those of ISO 15924.
"""
# mypy: disallow-untyped-defs=False, disallow-any-expr=False

from __future__ import annotations

import numpy as np

from tamis.kernels.characters import decode, flags_of
from tamis.kernels.jit import kernel
from tamis.kernels.unicode_tables import LETTER

_RANGES = """
41:Latn 370:Grek 3e2:Copt 3f0:Grek 400:Cyrl 531:Armn 5d0:Hebr 620:Arab 710:Syrc 750:Arab 780:Thaa 7ca:Nkoo
800:Samr 840:Mand 860:Syrc 870:Arab 904:Deva 980:Beng a05:Guru a85:Gujr b05:Orya b83:Taml c05:Telu c80:Knda
d04:Mlym d85:Sinh e01:Thai e81:Laoo f00:Tibt 1000:Mymr 10a0:Geor 1100:Hang 1200:Ethi 13a0:Cher 1401:Cans
1681:Ogam 16a0:Runr 1700:Tglg 1720:Hano 1740:Buhd 1760:Tagb 1780:Khmr 1820:Mong 18b0:Cans 1900:Limb 1950:Tale
1980:Talu 1a00:Bugi 1a20:Lana 1b05:Bali 1b83:Sund 1bc0:Batk 1c00:Lepc 1c5a:Olck 1c80:Cyrl 1c90:Geor 1d00:Latn
1d26:Grek 1d2b:Cyrl 1d2c:Latn 1d5d:Grek 1d62:Latn 1d66:Grek 1d6b:Latn 1d78:Cyrl 1d79:Latn 1dbf:Grek 1e00:Latn
1f00:Grek 2071:Latn 2126:Grek 212a:Latn 2c00:Glag 2c60:Latn 2c80:Copt 2d00:Geor 2d30:Tfng 2d80:Ethi 3005:Hani
3041:Hira 30a1:Kana 3105:Bopo 3131:Hang 31a0:Bopo 31f0:Kana 3400:Hani a000:Yiii a4d0:Lisu a500:Vaii a640:Cyrl
a6a0:Bamu a722:Latn a800:Sylo a840:Phag a882:Saur a8f2:Deva a90a:Kali a930:Rjng a960:Hang a984:Java a9e0:Mymr
aa00:Cham aa60:Mymr aa80:Tavt aae0:Mtei ab01:Ethi ab30:Latn ab65:Grek ab66:Latn ab70:Cher abc0:Mtei ac00:Hang
f900:Hani fb00:Latn fb13:Armn fb1d:Hebr fb50:Arab ff21:Latn ff66:Kana ffa0:Hang 10000:Linb 10280:Lyci 102a0:Cari
10300:Ital 10330:Goth 10350:Perm 10380:Ugar 103a0:Xpeo 10400:Dsrt 10450:Shaw 10480:Osma 104b0:Osge 10500:Elba
10530:Aghb 10570:Vith 10600:Lina 10780:Latn 10800:Cprt 10840:Armi 10860:Palm 10880:Nbat 108e0:Hatr 10900:Phnx
10920:Lydi 10980:Mero 109a0:Merc 10a00:Khar 10a60:Sarb 10a80:Narb 10ac0:Mani 10b00:Avst 10b40:Prti 10b60:Phli
10b80:Phlp 10c00:Orkh 10c80:Hung 10d00:Rohg 10e80:Yezi 10f00:Sogo 10f30:Sogd 10f70:Ougr 10fb0:Chrs 10fe0:Elym
11003:Brah 11083:Kthi 110d0:Sora 11103:Cakm 11150:Mahj 11183:Shrd 11200:Khoj 11280:Mult 112b0:Sind 11305:Gran
11400:Newa 11480:Tirh 11580:Sidd 11600:Modi 11680:Takr 11700:Ahom 11800:Dogr 118a0:Wara 11900:Diak 119a0:Nand
11a00:Zanb 11a50:Soyo 11ab0:Cans 11ac0:Pauc 11c00:Bhks 11c72:Marc 11d00:Gonm 11d60:Gong 11ee0:Maka 11fb0:Lisu
12000:Xsux 12f90:Cpmn 13000:Egyp 14400:Hluw 16800:Bamu 16a40:Mroo 16a70:Tnsa 16ad0:Bass 16b00:Hmng 16e40:Medf
16f00:Plrd 16fe0:Tang 16fe1:Nshu 16fe3:Hani 17000:Tang 18b00:Kits 18d00:Tang 1aff0:Kana 1b001:Hira 1b120:Kana
1b150:Hira 1b164:Kana 1b170:Nshu 1bc00:Dupl 1df00:Latn 1e100:Hmnp 1e290:Toto 1e2c0:Wcho 1e7e0:Ethi 1e800:Mend
1e900:Adlm 1ee00:Arab 20000:Hani
"""
"""First letter (hexadecimal) and script of each range; a range ends where the next one starts."""


def _tables() -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    entries = _RANGES.split()
    firsts = [int(entry.partition(":")[0], 16) for entry in entries]
    codes = [entry.partition(":")[2] for entry in entries]
    names = tuple(dict.fromkeys(codes))
    lasts = [*firsts[1:], 0x110000]
    points = np.zeros(0x110000, np.uint8)
    for first, last, code in zip(firsts, lasts, codes, strict=True):
        points[first:last] = names.index(code)
    different: dict[bytes, int] = {}
    pages = [different.setdefault(page.tobytes(), len(different)) for page in points.reshape(-1, 256)]
    return names, np.array(pages, np.uint8), np.frombuffer(b"".join(different), np.uint8)


SCRIPTS, PAGES, CELLS = _tables()
"""Script codes; the page of each block of 256 code points; the script number of each code point in a page."""
PAGES.flags.writeable = False

JAPANESE = "Jpan"
"""Han in which at least one letter in twenty is kana."""

_HAN, _HIRAGANA, _KATAKANA = SCRIPTS.index("Hani"), SCRIPTS.index("Hira"), SCRIPTS.index("Kana")


@kernel
def find_scripts(data, offsets, points, kinds, pages, cells, scripts, out):
    """out[i] = number of the most frequent script in row i, `scripts` for Japanese, -1 if there are no letters.

    Kana and Han count as one script. Ties go to the script whose letters come first in Unicode. out int16[rows].
    """
    counts = np.zeros(scripts, np.int64)
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        latin = 0
        for script in range(scripts):
            counts[script] = 0
        while at < end:
            byte = data[at]
            if byte < 128:
                latin += np.uint8((byte | 32) - 97) < 26
                at += 1
                continue
            point, at = decode(data, at, end)
            if flags_of(point, points, kinds) & LETTER:
                counts[cells[np.int64(pages[point >> 8]) << 8 | (point & 255)]] += 1
        counts[0] += latin
        kana = counts[_HIRAGANA] + counts[_KATAKANA]
        counts[_HAN] += kana
        counts[_HIRAGANA] = counts[_KATAKANA] = 0
        best = 0
        for script in range(scripts):
            if counts[script] > counts[best]:
                best = script
        out[row] = -1 if counts[best] == 0 else scripts if best == _HAN and 20 * kana >= counts[best] else best
