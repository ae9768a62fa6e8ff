"""CSV files: their encoding, separator and decimal mark, and their cells as text.

A table has too few words for statistics of letters alone. Encodings are ruled out first if they
produce words that nobody writes: letters of two scripts in one word, a capital after a small
letter, a sign between letters, letters that no language combines. `chardet` ranks the remaining
ones, and a file is refused if two are about equally likely. `chardet` and `charset-normalizer`
alone name a wrong encoding for a quarter and a half of tables with a few short words.
"""

from __future__ import annotations

import codecs
import csv
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field

from llm_elicit._util.packages import LazyModule
from llm_elicit._util.settings import StrictModel, increasing
from llm_elicit._util.text import visible
from llm_elicit.errors import InputError

chardet = LazyModule("chardet")

_HAN = frozenset({"HAN", "WIDE"})
_LATIN = frozenset[str]()
_ENCODINGS = {
    "cp1252": ("cp1252", _LATIN),
    "gb18030": ("gb18030", _HAN),
    "big5": ("big5hkscs", _HAN),
    "cp932": ("cp932", _HAN | {"KANA", "HALF"}),
    "euc_jp": ("euc_jis_2004", _HAN | {"KANA"}),
    "cp949": ("cp949", frozenset({"HAN", "HANGUL"})),
    "cp1250": ("cp1250", _LATIN),
    "cp1251": ("cp1251", frozenset({"CYRILLIC"})),
    "koi8_r": ("koi8-r", frozenset({"CYRILLIC"})),
    "koi8_u": ("koi8-u", frozenset({"CYRILLIC"})),
    "cp1253": ("cp1253", frozenset({"GREEK"})),
    "cp1254": ("cp1254", _LATIN),
    "cp1255": ("cp1255", frozenset({"HEBREW"})),
    "cp1256": ("cp1256", frozenset({"ARABIC"})),
    "cp1257": ("cp1257", _LATIN),
    "cp874": ("cp874", frozenset({"THAI"})),
    "iso8859_2": ("iso8859-2", _LATIN),
    "iso8859_5": ("iso8859-5", frozenset({"CYRILLIC"})),
    "iso8859_6": ("iso8859-6", frozenset({"ARABIC"})),
    "iso8859_15": ("iso8859-15", _LATIN),
    "cp866": ("cp866", frozenset({"CYRILLIC"})),
    "mac_roman": ("mac-roman", _LATIN),
    "mac_cyrillic": ("mac-cyrillic", frozenset({"CYRILLIC"})),
    "cp850": ("cp850", _LATIN),
}
"""Encodings by Python's name: chardet's name, and their scripts besides ASCII."""

_COMMON = {"gb18030": "gb2312", "cp949": "euc_kr"}
"""By encoding: an older one that has nearly all characters in use."""

_LETTERS = (
    "äöüß", "àâæçéèêëîïôœùûü", "àèéìòùîï", "áéíóúñü", "àçèéíïòóúü·", "áâãàçéêíóôõúü", "æøåéö",
    "åäöéü", "áðéíóúýþæö", "ëïéèüöáó", "äõöüšž", "ąćęłńóśźż", "áčďéěíňóřšťúůýž",
    "áäčďéíĺľňóôŕšťúýž", "áéíóöőúüű", "ăâîşţșț", "čćđšž", "çë", "çğıİöşüâîû", "ąčęėįšųūž",
    "āčēģīķļņšūž", "абвгдежзийклмнопрстуфхцчшщъыьэюяё", "абвгґдеєжзиіїйклмнопрстуфхцчшщьюя",
    "абвгдеёжзійклмнопрстуўфхцчшыьэюя", "абвгдђежзијклљмнњопрстћуфхцчџш",
    "абвгдѓежзѕијклљмнњопрстќуфхцчџш", "аәбвгғдеёжзийкқлмнңоөпрстуұүфхһцчшщъыіьэюя",
)  # fmt: skip
"""The letters beyond ASCII of languages in Latin and Cyrillic script."""

_ALPHABETS = tuple(frozenset(letters + letters.upper()) for letters in _LETTERS)

_SIGNS = frozenset("“”„‘’‚–—…•·°µ€£§±²³¹½¼¾«»¿¡×÷™®©\u00a0¥ªº´¨¸¬¦¶†‡‰‹›ƒˆ˜")
_JOINING = frozenset("’‘´·–—\u00a0")
"""Signs that may stand between two letters."""

_QUOTES = frozenset("“”„‘’‚«»‹›…¿¡")
_ALONE = _SIGNS - _JOINING - _QUOTES
"""Signs that never stand next to a letter beyond ASCII."""

_ALIASES = {"HIRAGANA": "KANA", "KATAKANA": "KANA", "KATAKANA-HIRAGANA": "KANA", "CJK": "HAN",
            "HALFWIDTH": "HALF", "FULLWIDTH": "WIDE", "IDEOGRAPHIC": "WIDE"}  # fmt: skip
_SAMPLE_BYTES, _MAX_CELLS, _MAX_CHARACTERS = 2_000_000, 5_000, 300
_START, _MIN_ZERO_SHARE = 4_000, 0.2
"""Number of first bytes to look at, and the smallest share of zero bytes in UTF-16 there."""

_MAX_BAD_SHARE = 0.1
"""Largest share of words with letters that no language combines."""

_MIN_RATIO = 2.0
"""Smallest ratio of the likelihoods of the best and the second-best encoding."""

_MIN_RATIO_CP1252 = 1.2
"""`_MIN_RATIO` for cp1252, which is by far the most common encoding."""

_PRIOR = {"cp1250": 0.85, "cp1257": 0.7, "iso8859_2": 0.5, "cp850": 0.3,
          "mac_roman": 0.4, "mac_cyrillic": 0.5, "cp866": 0.6, "iso8859_5": 0.5}  # fmt: skip
"""Prior weights of encodings; 1 for those of Windows in the West and in East Asia."""

_ICELANDIC = frozenset("ðýþÐÝÞ")
"""Letters of cp1252 whose codes are Turkish letters in cp1254."""

_NOT_CHARSETS = {"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape"}


class _Decoding(NamedTuple):
    """The words of a file, decoded by one encoding.

    Attributes:
        encoding: Python's name of the encoding.
        words: the cells with a character beyond ASCII.
        coherent: whether one language has all their letters.
    """

    encoding: str
    words: tuple[str, ...]
    coherent: bool


def charset(name: str) -> str:
    """Return the name of an encoding unchanged after checking it.

    Raises:
        ValueError: Python knows no encoding of that name, or it is not one of text.
    """
    try:
        codec = codecs.lookup(name)
        is_text = codec._is_text_encoding and codec.name not in _NOT_CHARSETS
    except (LookupError, ValueError):
        is_text = False
    if not is_text:
        raise ValueError(
            f"no encoding {name!r}; give the name of a Python encoding, such as gb18030"
        )
    return name


def encoding_of(content: bytes, source: str) -> str:
    """Return the encoding of a text file.

    Args:
        content: its bytes.
        source: its name, for messages.

    Raises:
        InputError: two encodings are about as likely, or none makes sense.

    Examples:
        >>> encoding_of("city\\n北京\\n上海\\n广州\\n".encode("gb18030"), "c.csv")
        'gb18030'
        >>> encoding_of("Stadt\\nKöln\\nMünchen\\n".encode("cp1252"), "c.csv")
        'cp1252'
    """
    if content[:4] in (b"\xff\xfe\0\0", b"\0\0\xfe\xff"):
        return "utf-32"
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    if b"\0" in content:
        return _detect_wide_encoding(content)
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return _likeliest(content, source)
    return "utf-8"


def _detect_wide_encoding(content: bytes) -> str:
    """Return the encoding of a file with zero bytes: UTF-16 or UTF-32 without a mark, or UTF-8."""
    for encoding in ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be"):
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        zeros = content[:_START].count(0)
        plain = sum(character in ",;\t|\r\n .0123456789" for character in text[:_START])
        enough = min(zeros / len(content[:_START]), plain / len(text[:_START])) > _MIN_ZERO_SHARE
        if enough and "\0" not in text:
            return encoding
    return "utf-8"


def _likeliest(content: bytes, source: str) -> str:
    parts = re.split(rb"[\r\n,;\t|\"]+", content[:_SAMPLE_BYTES])
    cells = sorted({cell[:_MAX_CHARACTERS] for cell in parts if not cell.isascii()})[:_MAX_CELLS]
    decodings = list(_plausible_decodings(content, cells))
    coherent = [decoding for decoding in decodings if decoding.coherent]
    ranked = _rank_decodings(coherent or decodings, b"\n".join(cells))
    if not ranked:
        raise InputError(
            f"{source}: the encoding cannot be detected, and it is not UTF-8; give it, such as "
            "--encoding gb18030, or save the file as UTF-8"
        )
    (best, likelihood), *others = ranked
    min_ratio = _MIN_RATIO_CP1252 if best.encoding == "cp1252" else _MIN_RATIO
    if not others or likelihood > min_ratio * others[0][1]:
        return best.encoding
    candidates = " or ".join(
        f"{decoding.encoding} ({visible(', '.join(decoding.words[:3]), 40)})"
        for decoding, _ in ranked[:4]
    )
    raise InputError(
        f"{source}: the encoding could be {candidates}; give the right one (--encoding "
        f"{best.encoding}), or save the file as UTF-8"
    )


def _plausible_decodings(content: bytes, cells: Collection[bytes]) -> Iterable[_Decoding]:
    """Yield the distinct decodings of a file that have plausible words."""
    readings = set()
    for encoding, (_, scripts) in _ENCODINGS.items():
        try:
            content.decode(encoding)
            words = tuple(cell.decode(encoding, "ignore") for cell in cells)  # some were cut
        except UnicodeDecodeError:
            continue
        tokens = {token for word in words for token in re.findall(r"[A-Za-z\x80-\U0010ffff]+", word)
                  if not token.isascii()}  # fmt: skip
        implausible = sum(not _is_word(token, scripts) for token in tokens)
        if words in readings or implausible > _MAX_BAD_SHARE * len(tokens):
            continue
        characters = {character for token in tokens for character in token} - _SIGNS
        letters = {letter for letter in characters if letter.isalpha() and not letter.isascii()}
        if encoding in _COMMON:
            in_use = "".join(letters).encode(_COMMON[encoding], "ignore").decode(_COMMON[encoding])
            if len(in_use) < (1.0 - 3 * _MAX_BAD_SHARE) * len(letters):
                continue
        readings.add(words)
        not_cyrillic = not scripts & {"CYRILLIC"} and bool(scripts)
        coherent = not_cyrillic or any(letters <= alphabet for alphabet in _ALPHABETS)
        yield _Decoding(encoding, words, coherent)


def _rank_decodings(decodings: list[_Decoding], sample: bytes) -> list[tuple[_Decoding, float]]:
    """Return decodings with their likelihoods, the likeliest first."""
    for decoding in decodings:
        # Signs alone, as in °C, say nothing by their letters, and Hiragana say everything.
        letters = [c for c in "".join(decoding.words) if not c.isascii()]
        if decoding.encoding == "cp1252" and _SIGNS.issuperset(letters):
            return [(decoding, 1.0)]
        if sum("\u3041" <= letter <= "\u309f" for letter in letters) > len(letters) / 2:
            return [(decoding, 1.0)]
    if len(decodings) < 2:
        return [(decoding, 1.0) for decoding in decodings]
    names = [_ENCODINGS[decoding.encoding][0] for decoding in decodings]
    results = chardet.detect_all(
        sample, ignore_threshold=True, compat_names=False, include_encodings=names,
        no_match_encoding=names[0],
    )  # fmt: skip
    likelihoods = {result["encoding"]: result["confidence"] for result in results}
    ranked = []
    for decoding, name in zip(decodings, names, strict=True):
        prior = _PRIOR.get(decoding.encoding, 1.0)
        if decoding.encoding == "cp1252" and not _ICELANDIC.isdisjoint("".join(decoding.words)):
            prior = 0.4
        ranked.append((decoding, float(likelihoods.get(name, 0.0)) * prior))
    return sorted(ranked, key=lambda pair: -pair[1])


def _is_word(token: str, scripts: Collection[str]) -> bool:
    """Return whether letters make a plausible word in one of the scripts or in Latin."""
    scripts_used = {_script(character) for character in token} - {""}
    foreign = scripts_used - {"LATIN"}
    if not foreign <= set(scripts):
        return False
    if foreign and "LATIN" in scripts_used:
        # T恤 and A區 are words of two scripts, K鰈n is none.
        mixed = r"[a-z][^\x00-\x7f]|[^\x00-\x7f][a-z]"
        if not foreign & {"HAN", "HANGUL"} or re.search(mixed, token):
            return False
    odd_pair = any(
        not (first.isascii() and second.isascii())
        if first.islower() and second.isupper()
        else bool({first, second} & _ALONE) and not (first.isascii() or second.isascii())
        for first, second in pairwise(token)
    )
    signs = any(
        middle in _SIGNS - _JOINING
        or (middle.isupper() and not middle.isascii() and right.islower())  # as in MÜller
        for left, middle, right in zip(token, token[1:], token[2:], strict=False)
        if left.isalpha() and right.isalpha()
    )
    return not (odd_pair or signs)


@cache
def _script(character: str) -> str:
    """Return a letter's script, "" for a sign that occurs in tables, and "ODD" for others."""
    if character.isascii():
        return "LATIN" if character.isalpha() else ""
    if character in _SIGNS:
        return ""
    name = unicodedata.name(character, "?")
    script = _ALIASES.get(name.split()[0], name.split()[0])
    if name.startswith("HANGUL LETTER"):
        return "ODD"
    is_letter = character.isalpha() or unicodedata.category(character).startswith("M")
    return script if is_letter or script in _ALIASES.values() else "ODD"


_SAMPLE = 64_000
"""The characters from which the separator is found."""

Separator = Literal[",", ";", "\t", "|"]
_SEPARATORS: tuple[Separator, ...] = (",", ";", "\t", "|")


Lines = Annotated[tuple[Annotated[int, Field(ge=1)], ...], AfterValidator(increasing)]
_FIRST: Lines = (1,)


class Dialect(StrictModel):
    """The format of a table's file.

    Attributes:
        sep: what separates the cells of a CSV.
        decimal: the decimal mark.
        thousands: the thousands separator; groups of three digits after commas are read anyway
            where the decimal mark is a point.
        encoding: the encoding of a CSV's text, by a name that Python knows.
        header: the line with the names, counted from 1; of two lines, the second completes the
            names of the first. Lines above do not belong to the table.
        left_out: lines below the header that are not cases, such as totals.
    """

    sep: Separator = ","
    decimal: Literal[".", ","] = "."
    thousands: Literal["", "."] = ""
    encoding: Annotated[str, AfterValidator(charset)] = "utf-8"
    header: Annotated[Lines, Field(min_length=1, exclude_if=lambda lines: lines == _FIRST)] = _FIRST
    left_out: Lines = Field(default=(), exclude_if=lambda lines: not lines)


def decode(content: bytes, source: str, encoding: str = "") -> tuple[str, str]:
    """Return the text of a file and its encoding.

    Args:
        content: its bytes, not compressed.
        source: its name, for messages.
        encoding: its encoding; if empty, it is found from the bytes.

    Raises:
        InputError: its encoding is not clear, or it is not text.
    """
    try:
        encoding = charset(encoding) if encoding else encoding_of(content, source)
        text = content.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        if b"\0" in content:
            raise unreadable(source, "not a text file; save the table as CSV") from None
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{source}: line {line} is not {encoding} (byte 0x{content[error.start]:02x}); give "
            "another --encoding, leave out --encoding to detect it, or save the file as UTF-8"
        ) from None
    except ValueError as error:
        raise unreadable(source, error) from None
    if not text.strip():
        raise unreadable(source, "the file is empty; give a table")
    if "\0" in text:
        raise unreadable(source, "not a text file; save the table as CSV")
    return text, encoding


def separator_of(text: str) -> Separator:
    r"""Return the separator with which most lines have as many cells as the first.

    Examples:
        >>> separator_of("a;b\n1,5;2,5\n"), separator_of("a\tb\n1\t2\n"), separator_of("a\n1\n")
        (';', '\t', ',')
    """
    if declared := read_separator_line(text):
        return declared
    lines = text[:_SAMPLE].splitlines()[: -1 if len(text) > _SAMPLE else None]

    def consistent(sep: Separator) -> tuple[bool, float, int]:
        widths = Counter[int]()
        with suppress(csv.Error):
            widths = Counter(len(row) for row in csv.reader(lines, delimiter=sep) if row)
        if not widths:
            return False, 0.0, 0
        width, count = widths.most_common(1)[0]
        return width > 1, count / widths.total(), width

    return max(_SEPARATORS, key=consistent)


def read_separator_line(text: str) -> Separator | None:
    r"""Return the separator that a first line for Excel states, None if there is no such line.

    Raises:
        InputError: the line states a separator that is not supported.

    Examples:
        >>> read_separator_line("sep=;\na;b\n"), read_separator_line("a;b\n")
        (';', None)
    """
    line = re.match(r'"?sep=(\t|[^\n"]*)"?[,;\t|]*\n', text, re.IGNORECASE)
    if line is None:
        return None
    for sep in _SEPARATORS:
        if line[1] in (sep, {"\t": "\\t"}.get(sep)) or (not line[1] and sep in line[0]):
            return sep
    raise InputError(
        f"the first line states the separator {line[1]!r}; use a comma, a semicolon, a tab or |"
    )


def check_distinct(names: Iterable[str], source: str) -> None:
    """Check that no two columns have the same name.

    Raises:
        InputError: two columns have the same name.
    """
    duplicate = next((name for name, count in Counter(names).items() if count > 1), None)
    if duplicate is not None:
        raise InputError(
            f"{source}: two columns are called {visible(duplicate, 100)!r}; rename one of them"
        )


def unreadable(source: str, error: Exception | str) -> InputError:
    """Return the error for a file that cannot be read."""
    if isinstance(error, InputError):
        return error
    line = visible(" ".join(str(error).split()), 300)
    return InputError(f"{source}: cannot be read as CSV: {line}")
