"""Encodings of tables that do not state theirs: few short words, in scripts of many languages."""

from pathlib import Path

import pytest

from llm_elicit.errors import InputError
from llm_elicit.spaces.csv_files import encoding_of
from llm_elicit.spaces.features import FeatureSpace


def written(words: str, heading: str = "city") -> str:
    cells = words.split(" ")
    return f"{heading},x\n" + "".join(f"{cells[k % len(cells)]},{k % 7}.5\n" for k in range(30))


@pytest.mark.parametrize(
    ("words", "encoding"),
    [
        ("北京 广州 上海", "gb18030"),
        ("男 女", "gb18030"),
        ("已婚 未婚 离异", "gb18030"),
        ("台北 高雄 台中 新竹", "big5"),
        ("東京 大阪 京都", "cp932"),
        ("はい いいえ わからない", "cp932"),
        ("はい いいえ わからない", "euc_jp"),
        ("서울 부산 대구 인천", "cp949"),
        ("Москва Казань Омск", "cp1251"),
        ("Москва Казань Омск", "koi8_r"),
        ("мужской женский", "cp866"),
        ("Київ Львів Харків", "cp1251"),
        ("София Пловдив Варна", "cp1251"),
        ("Łódź Kraków Gdańsk", "cp1250"),
        ("Plzeň Brno Ústí Děčín", "iso8859_2"),
        ("Győr Pécs Szeged", "cp1250"),
        ("Αθήνα Πάτρα Ηράκλειο", "cp1253"),
        ("ירושלים חיפה", "cp1255"),
        ("القاهرة الرياض دبي", "cp1256"),
        ("İstanbul Eskişehir Ankara", "cp1254"),
        ("กรุงเทพ เชียงใหม่", "cp874"),
        ("Šiauliai Panevėžys Kaunas", "cp1257"),
        ("Köln München Berlin", "cp1252"),
        ("Köln München Berlin", "mac_roman"),
        ("männlich weiblich", "cp1252"),
        ("Besançon Orléans Nîmes", "cp1252"),
        ("café bar pub", "cp1252"),
        ("São_Paulo Brasília Maceió", "cp1252"),
        ("Tromsø Århus Ålesund", "cp1252"),
        ("don’t_know yes no", "cp1252"),
        ("20°C 30°C", "cp1252"),
        ("„Köln“ „Wien“", "cp1252"),
        ("»ja« »nein«", "cp1252"),
        ("„taip“ „ne“", "cp1257"),
        ("€5 €10", "cp1252"),
        ("北京 上海", "utf-16-le"),
        ("Oslo Bergen", "utf-16-be"),
        ("Oslo Bergen", "utf-16"),
        ("北京 上海", "utf-8-sig"),
    ],
)
def test_words_are_read_as_they_were_written(words: str, encoding: str) -> None:
    content = written(words).encode(encoding)
    known = encoding_of(content, "t.csv")
    assert content.decode(known).lstrip("\ufeff") == written(words)


@pytest.mark.parametrize(
    ("words", "encoding", "candidates"),
    [
        ("男性 女性", "euc_jp", ("gb18030", "euc_jp (女性, 男性)")),
        ("Ж М", "cp1251", ("cp1251", "koi8_r")),
        ("Gdańsk Poznań", "cp1250", ("cp1250 (Gdańsk, Poznań)", "cp1252 (Gdañsk, Poznañ)")),
    ],
)
def test_what_stays_doubtful_is_refused_with_the_candidates(
    words: str, encoding: str, candidates: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(written(words).encode(encoding))
    with pytest.raises(InputError) as refused:
        FeatureSpace.from_file(path)
    message = str(refused.value)
    assert "\n" not in message
    assert all(candidate in message for candidate in ("the encoding c", *candidates))
    named = FeatureSpace.from_file(path, encoding=encoding)
    assert set(named.features[0].categories) == set(words.split(" "))


def test_the_encoding_is_said_and_recorded(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(written("北京 广州 上海", "城市").encode("gbk"))
    drafted = FeatureSpace.from_file(path)
    assert drafted.draft is not None
    assert [note for note in drafted.draft.notes if "read as gb18030" in note]
    space = FeatureSpace.load(str(drafted.save()))
    assert space.table is not None
    assert space.table.dialect.encoding == "gb18030"
    assert space.features[0].categories == ("上海", "北京", "广州")
    assert space.printed_rows()[1] == ["北京", "0.5"]
    assert len(space.table_points()) == 30


@pytest.mark.parametrize("name", ["klingon", "rot13", "punycode", "\0"])
def test_an_encoding_that_is_none_is_one_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(written("Oslo Bergen").encode())
    with pytest.raises(InputError, match="no encoding") as refused:
        FeatureSpace.from_file(path, encoding=name)
    assert "\n" not in str(refused.value)


def test_letters_that_were_lost_before_are_said(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for words, said in (("TromsÃ¸ Oslo", "'Tromsø'"), ("Troms\ufffd Oslo", "lost")):
        path.write_bytes(written(words).encode())
        draft = FeatureSpace.from_file(path).draft
        assert draft is not None
        assert said in draft.notes[0]
