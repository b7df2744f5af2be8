"""Properties of Unicode 15.0.0 code points, in two stages. Written by scripts/make_unicode_tables.py.

class = CLASSES[BLOCKS[point >> 8] << 8 | point & 255]        FLAGS[class], BREAKS[class]
"""

from __future__ import annotations

import base64
import zlib

import numpy as np

UNICODE_VERSION = "15.0.0"

SPACE = 1
LETTER = 2
DIGIT = 4
NUMBER = 8
MARK = 16
PUNCTUATION = 32
SYMBOL = 64
CONTROL = 128
UPPER = 256
LOWER = 512
UNSPACED = 1024
STOP = 2048
WIDE_STOP = 4096
CLOSER = 8192
PICTOGRAPH = 16384
MARKER = 32768

WB_OTHER = 0
WB_CR = 1
WB_LF = 2
WB_NEWLINE = 3
WB_EXTEND = 4
WB_ZWJ = 5
WB_FORMAT = 6
WB_KATAKANA = 7
WB_HEBREW_LETTER = 8
WB_ALETTER = 9
WB_SINGLE_QUOTE = 10
WB_DOUBLE_QUOTE = 11
WB_MIDNUMLET = 12
WB_MIDLETTER = 13
WB_MIDNUM = 14
WB_NUMERIC = 15
WB_EXTENDNUMLET = 16
WB_REGIONAL_INDICATOR = 17
WB_WSEGSPACE = 18


def _unpack(text: bytes, dtype: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b85decode(text)), dtype)


BLOCKS = _unpack(
    b"c-muNWMXDvWn<^y<l^Sx<>MC+6cQE@6crPfkd%^^k(HBIP*hS@QB_k^SJcqd($>+{(>E~01&j=-4g`U~SkT1O%-q6Kka%EaO$Zp;*b3U&J2*NyyS"
    b"Taux_fwfdHeYK`3D3B1&4%&g-1k2MaRU(#RJVsNKAt3N(LF8f@YMUU@AfD1O?O5t*tXMv#^6~5RsEh(3rgZf<ic_2vfeeq_nKOqOz)5QLzTZudS<"
    b"Zux_-rZfb6^wr*`}x9;fd>h9_7>z^=j(&Q;qrc5;)5?~s-!1Nhd)y>3b$SjoTH=GTnF~A%&{#@%(FbYP&C>RB!U=)mkQ7{UI379v3Gz><;$OQo5p"
    b"5#U",
    "u1",
)
CLASSES = _unpack(
    b"c-rk9iDK&}a=LG$7S?HFyTS_Du9M!oeQn=%)BgXbE%zl5peuH)krP|u7#M~DW(EYH;IqGd`0#h|;4=ny&F5brjQ@dm7~SJ9@mB^O?h!%_-X{U$9X"
    b"g<65-{2!iRc3);cJXIVAK+fPA&V{b?As6P)BxM*QL-S^_{|PinSkk<sW1&l}i2KAD+j4Z*Pu!6K$_C$RP3KNO&B=K&L4wlg76{j=vP;WGVKl&|cU"
    b"yAVXn2cw`XXKRybsK`KN(dL)nfmj${qa2gS`KLYSt-tRe&BeZ{DGz4}@YI*?XR{`lH4-N3OjD%F%)kAGt=D7(ulo@eN>xI=9l#z)w@6*#0etIY-)"
    b"IXm%BOs{aCd@AR(em<}H0a=`2S>i11aJw<<U5n-Zsw<^X-GLlOK8Un{I7e=B9Y~x(M36_>hQ85`NNinMMQ|ODq;(8$`x>+F<6@~1r8SCkB?q`3Nv"
    b"99$M+4(h%y2sqdM`;9e^TKgE`rn28OV)*lxHeZz{Sf2;)atFI(10?8liP+lxlGNdzb9<w<GNIK3c7Crcsu7XvWgii(Uz#BiScv&=yytwA90xrEQ4"
    b"IIy<IG8NeNDZ#Hl42i;S@N3Mvh@{7*f-)3a26pQ&kQCwf>n{o-@dw=l!un&R1Dup~^zY+$>#ysSpg$s#`VIkzrN73b5`+FFL;RwdUZN0ExBfIGB}"
    b"BtZu>Gun{Qc){{Vjf#sVpz)(_h8Fonk_s1+K&o1^B@<K!Be;a4F;U)gk;b0no!wkYatR>ep-kt}`{4C_Vmn8<%7W0hU>Hlk4(;9hCg`=TWdrfO92"
    b"K_OV$b{Z!8xoSufE1kPtT%R(fJ0&bASPw5$SN?l*CrXnZ<&tmH10pd$eHenDDX}Jzjez6ttj?!lZ@LT}yz~)cmWIpa>qGb99x+|-~f~t#HF_)6Ry"
    b"yYWsw)Bw`DH~ONi$9&#35sTWrtV0=+n{i|E!I)|f5p-SljwSKgHZr_0M(+&yRS_@6%Wi*k4Y5aeHe?0GMg!P5r{~6guLMy_KSe-Cu|_zICnij{pI"
    b"vsIyT<HtV>G9hA%HK-fAqCzcY`DqNjX8GZ2ANfBqfxE%3w7BOt34VZ#s~1<#S0r`P#FtY;gwq7`e!F#dA#(#gMM2};R~<$<9F_9FTU4(Q!;G3Bmr"
    b"hg(k1*T%K~aQxm%M`%`aFr-Z2+;N`9pu^KRM$VAm!h1C*JvTy81-WS<)WR4ANK%2~m7kZF{aI3*=;jHNBU$VLq6&Rivc$UXoUmgxOM>lLdau1mZT"
    b"XtU%toPlycdy;=F+w&PAa*m7A3^!imL1~)1cVKQ-f{}d(7osQ>~LDFnRVJ&4-phLi<lHKJ4X{O0UzE<saOGx<^MQMBICECvp{~QTHajm{oi6;ZDN"
    b"W><_;E?sU@q>H8npzn%Jxzj*lZM`0-W$*Ku<_~!;64(!*z@vdopw(5g}jdUkcDJu(yj_5fEU!(7cqgCMd5DwGX0W2oZD@F*m!sfZKf5rlR6pu8)P"
    b"|I$`B?vCsfS2t*oVGFs60O3298tK$dC9~6$p3e;DgvW`pq{-48_Wq@n>9r6HVmE_+NHB;EvVa?e3SF1T%2wKq>JNvF#PgZ2DLaY4crE6=inQ`3W_"
    b"6Imp$6mA<Cw!;`i#WsoGisw*!*6RlzEq%p#}~moN6p@V!fscCdrDN_Z7WH+jv?i8G1b{x!QikHxVqG*>m-f=-#A)xc^}Wd;AIy>(04Yezn{z?tTU"
    b"S3Jj8Rb@ZLipMN|JB-U}0W!^Ty#7h6n*ys8%_*q**7v&a0$t%w&hvL>zVA%&vC}2Fl90H;4ekT$RZU}(<n=Fa(Fe-#Uo(`^o8RBzj~G3le{}_~ZS"
    b"ma>{i;Fo%WuDPK>YFZ^KUGV^CG|(a-Tl2AOHP*F~IzvG=i4{ENdYF>78WTC|90ZZU~8xOIkWpHnA$_*NK>IatzJn|EUgY<CkZAC2-#0s$pvTUzQK"
    b"W=<&GJo)?;go8Y!*pmyyUvGKHSCQ7JppTJ}=HlZ`Qi(6$Q!znzM!}&m<EOB;|g!=Mnb8+IS_MPVv5gEXtHU~x44Dyj`4>n6bn%fBQ4MSXmdo+e+W"
    b"f-DECKh4914nm_#@ok*<G9gRPx6Kjl-jN(I;9Uc&JcueM<}z`8Gda_isTR*=lc6(^Q&Hqh{XsHzy8X8?Ks>8mU@_ILIsy^LQh{-s3tA8&!Hn=q5G"
    b"-wCsc;^Gd&NuHhT75QE(yQ+$OS~-~M-E{aLZ}fAox=ME02D%uvyCP0SPfDqIU8>#s7ZDzE{pJ6l^5Us?Tq?+g1#Zl<Gl_Z;%~(y9OOjrwR<!HF=Z"
    b">{zj9?(p36>9NJv)45!Ghm;Iw2lp61+zYi|eEz_K4u_t$Ua1Zbhr>Po67C=PXskoTb^^f4A%CKG^4x;;1Rr?`@%M@S{U0ap@5j53oCsr8RDb-DZ}"
    b"!vx?yaYw*H^@@*I-9g#w)!43^LrCmp^YktSZ;BD!a71Onn&xQN@^e1fgU@mE&2}s+qq1_*=%^<0mzAxE-_kdwUh5OKbC^f}iagB2yV$T4l4g6bx2"
    b"Q|GDjcb9d2jzFy`STDH!pkv~)9mAf8}9&F*?vv2ThkD)End@tSq3aV7<Uq6h$q8Kpm^2Ll>Rg_SBlGDpEy}!3hPGX0{!#W1LHYT+%sB8!D8(cUye"
    b"7+I?5m^C3`ZB%F$Bf8L3f^Am{5EK_#hr!?W3*8v_3JvE8+=OXhlYn6)82u*{P@*|$|w~+!2cdYCt2PrrA@Hv{9^@W%BanY{q=hdcmyq-t@KY)*mO"
    b"rFkXuSrFqk;FU{<YNPWSGJ$>ILuC<u6LzFDg&?Qc>mor+)7Uk7AEuD6ao{w7e1s8f_uE$-~<7e>AK@f($Ru{fZraTal>0eP0_zlHb%>xXm71wSLp"
    b"sZmK@Y}A-S|GqhkQ(tNL9eWn$_FPCU{F3E`BE$?O`_SMtmC@sm-p8LVOEYS`>e;Mf_Q8?o|Ipa^Ki>H}X7XW6Fm9LT8|fd)4X~OE{qtWqe~@|c$G"
    b"0}x4s~tg^SJ6edTC|(#f=YyggfyUqCZ1Vq9;vx`<H`R_bB{+o8x)fJL7}dGkUw{0WmV8Dr3`?^IvERS)+VY^>UH(n_|`Xlo>EE2%2sEYVN|vfX2E"
    b"L%`Shc?P8&XV6t&Y43PR`5Z#jwwdV<q<VUAT7VeDJml|`gR|kdD4M2(UE7C~zd`{8)iIWB+^UmCf3#lE<F!7v=?EI6|m@ec&m$p<SsUIlM-Ut@&n"
    b"Ac6;F#GsM-4l$22ro1O_e3nXYhMXVw-+hVuaxhNx!~i!*5QwrbpgVmhP(sVq|62C<I~R9lklAapwY?O&C&bz_^m8`Fn_6fpFmM5>in7Yh&@^VA;x"
    b"^|@7SQI{$tR@ku*+U8BATDC+tGFS!qEw^Ds!q9!Qq5hfJ>@ex{zu%MbtG1~&=syZy`i$A}~wTrr3<50rN~@Xxk|dJyyx5st+qXHQ{7j?jD?Z!S_w"
    b"uB|3W`nUJyV*rTFv&He53qtKIEqAKsWu11Dhub{uvbz4$2&H$>s~3`K)rmO{J3JRVnaTWYGM$#ZSeNBrSQEZ9gAH!Jx#;!#z?pWrG%zAf3=fDy&H"
    b">a}=XS@4I+HGfZd`r9oTu*ZM9HVIuOBK&vjDAcAdNj=JocvNW9A*tH<R+{Y9C8sq`E4$b-FB-^SUzU7B_tljOYtA=9Yh%Hxjs!-sO5Y`JNIt2uk;"
    b"BPBxRQZaJzgzVF%;`ezUX8!Xr!bh7_qU@t<qM88P=Z-t*AbzsAL@V{`j8+NtB<QzNS-8Ykm=Z|d?t;Aug@O=>aeAzcE54y}n>_qthnVs&z_IUkjb"
    b"K-d9$$Kxpd8S><Ls?{YJ*7mEE+7nrSL^%y`<k~zyfRqhZ4|E#^n$_%nfn|DkDc=`g=y38SBah@>V<R6zj&`}aqsk-G$JnrG1y;6!k<Y%KDl2ruhM"
    b"Y~h`jiwy?o657QHNJZx{aJ&~7lpdwVuYq=i=gB}_|=A+d+y{oB0B$`)@a1X||yXcEXjH`(h1di3+_=U<mT9&7HgWCAauH+^N;1w(p#?f1VhQ6;7T"
    b"<A4kZW4zY!=bFapCEWl*{m<(LHw<f^|GYlr`oq+m-#hg-56H{n;Ef*h3V=DzkiTY_o6;M@UBX)pDj?%s`|ZMTA^s0H17ZFD4-DhbYy",
    "u1",
)
FLAGS = _unpack(
    b"c-k#YF%HB42twlE*zrc5LOS(X_UET<F(#lu<NhX~lGKKv#poQ)m}S5w8U^E6M{$42thx4+iS4)yp0<9KGSjaMZBOzK%ySF+",
    "<u2",
)
BREAKS = _unpack(
    b"c-jrf!2y6E3<SYNg7F{*u>WFZo&#4c9|P!Q%vVdG8=3N%NY*0iB6S{jH`w+ACI<mz",
    "u1",
)

ALPHANUMERIC = LETTER | DIGIT | NUMBER
POINTS = np.concatenate([np.resize(BREAKS, 256), BLOCKS, CLASSES])
"""Lookup table for kernels: break of a class at 0, block of a point at 256, class in a block at 4608."""
KINDS = np.concatenate([FLAGS[CLASSES[:128]], FLAGS])
"""The flags of the first 128 code points, then the flags of each class."""
POINTS.flags.writeable = KINDS.flags.writeable = False
