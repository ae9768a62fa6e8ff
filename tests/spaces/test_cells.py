"""Cells as numbers, days and codes: as other programs write them."""

import numpy as np
import pandas as pd
import pytest

from llm_elicit.errors import InputError
from llm_elicit.spaces.cells import number_marks, to_days, to_numbers
from llm_elicit.spaces.csv_files import Dialect
from llm_elicit.spaces.features import Feature
from llm_elicit.spaces.naming import wordings
from llm_elicit.spaces.table import Table

AREA = Feature(name="area", label="area", kind="categorical", categories=["NA", "SA", "4"])
SEX = Feature(name="sex", label="sex", kind="categorical", categories=["female", "male"])
NUMBER = Feature(name="x", label="x", low=0, high=9)
GERMAN = Dialect(sep=";", decimal=",", thousands=".")


def values(cells, feature, words=None):
    column = pd.Series(cells, name=feature.name, dtype="str")
    table = Table(file="t.csv", sha256="0" * 64, source="", licence="", rows=1,
                  words={feature.name: words or {}})  # fmt: skip
    return table.values(column, feature, "t.csv").tolist()


def test_words_are_taken_as_they_are_written():
    """ "NA" is a category where it is listed, a number is a word, blanks around are nothing."""
    np.testing.assert_array_equal(
        values(["NA", " SA ", "4", "", "SA"], AREA), [0.0, 1.0, 2.0, np.nan, 1.0]
    )


def test_what_stands_for_nothing_in_a_table_is_missing_where_it_is_no_category():
    np.testing.assert_array_equal(values(["male", "NA", "", "female"], SEX), [1, np.nan, np.nan, 0])
    marks = ["", "NA", "n/a", "NaN", "null", "None", "?", "-", "#N/A"]
    assert np.isnan(values(marks, NUMBER)).all()


def test_cells_can_be_written_unlike_their_category():
    assert values(["M", "", "female"], SEX, {"M": "male", "": "female"}) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("cells", "feature", "match"),
    [
        (["SA", "Europe"], AREA, r"'area', line 3: 'Europe' is not .*\(NA, SA, 4\); correct"),
        (["4.0"], AREA, r"line 2: '4.0' is not one of its categories"),
        (["one"], NUMBER, r"column 'x', line 2: 'one' is not a number"),
        (
            ["2020-13-01"],
            Feature(name="d", label="d", kind="date", low=0, high=9),
            r"column 'd', line 2: '2020-13-01' is not a date",
        ),
    ],
)
def test_a_cell_that_cannot_be_used_is_named_in_one_line(cells, feature, match):
    with pytest.raises(InputError, match=match) as caught:
        values(cells, feature)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cells", "dialect", "expected"),
    [
        (["1,234", "$ 5", "7 %", "-1,234,567.5"], Dialect(), [1234, 5, 7, -1234567.5]),
        (["\u22125", "€1 200", "1'000 CHF"], Dialect(), [-5, 1200, 1000]),
        (["1,5", "1.234,5", "-0,25 €", "12"], GERMAN, [1.5, 1234.5, -0.25, 12]),
        (["18.5", "2.25"], GERMAN, [18.5, 2.25]),  # a column of English numbers
        (["1,2,3", "1-2", "12 kg"], Dialect(), [np.nan] * 3),
    ],
)
def test_numbers_are_read_with_their_signs(cells, dialect, expected):
    np.testing.assert_array_equal(to_numbers(pd.Series(cells, dtype="str"), dialect), expected)


@pytest.mark.parametrize(
    ("cells", "sep", "decimal"),
    [
        (["1,5"], ";", ","),
        (["1,234"], ";", ","),
        (["1,234"], ",", "."),
        (["1,234.5", "1,5"], ",", "."),
        (["1.234,50"], "\t", ","),
        (["a,b"], ",", "."),
    ],
)
def test_the_decimal_mark_is_that_of_most_numbers(cells, sep, decimal):
    assert number_marks({"a": cells}, sep).decimal == decimal


@pytest.mark.parametrize(
    ("cells", "thousands"),
    [
        (["2.709", "973"], "."),
        (["3.287.204", "956.000"], "."),
        (["0.123", "1.789"], ""),  # a column with decimal points beside one with commas
        (["1.5", "2.250"], ""),
        (["14.03.2020"], ""),
    ],
)
def test_points_are_thousands_beside_decimal_commas(cells, thousands):
    """In a column of its own, "2.709" is 2709 if the file's decimal mark is a comma."""
    assert number_marks({"a": cells, "b": ["4,0", "2,5"]}, ";").thousands == thousands


def test_days_of_dates_and_times():
    stamps = pd.Series(pd.to_datetime(["2020-03-14 23:59", None]))
    np.testing.assert_array_equal(to_days(stamps), [18335.0, np.nan])
    assert to_days(pd.Series(["14.03.2020"]), "%d.%m.%Y").tolist() == [18335.0]


@pytest.mark.parametrize(
    ("heading", "label", "unit"),
    [
        ("Yield (kg/ha)", "Yield", "kg/ha"),
        ("Price USD/kg", "Price", "USD/kg"),
        ("Moisture [%]", "Moisture", "%"),
        ("speed (km/h)", "speed", "km/h"),
        ("Weight [kg]", "weight", "kg"),
        ("Altitude, m", "altitude", "m"),
        ("Height in cm", "Height", "cm"),
        ("height_in_cm", "height", "cm"),
        ("Flächen in m²", "Flächen", "m²"),
        ("Größe [cm]", "größe", "cm"),
        ("Temperatur °C", "Temperatur", "°C"),
        ("Density (g/cm3)", "Density", "g/cm3"),
        ("Yield kg ha-1", "Yield", "kg ha-1"),
        ("Glucose mg/dL", "Glucose", "mg/dL"),
        ("Price (€/kg)", "Price", "€/kg"),
        ("price_eur_per_kg", "price", "EUR/kg"),
        ("Price per kg", "Price per kg", ""),
        ("Rainfall, mm/year", "Rainfall", "mm/year"),
        ("Income ($)", "Income", "USD"),
        ("Cost [1000 USD]", "Cost [1000 USD]", ""),
        ("Record (W/L)", "Record (W/L)", ""),
        ("Born in USA", "Born in USA", ""),
        ("name, first", "name, first", ""),
        ("pH", "pH", ""),
        ("Sex (m/f)", "Sex (m/f)", ""),
        ("rate (-)", "rate (-)", ""),
        ("n/a", "n/a", ""),
    ],
)
def test_units_are_read_in_brackets_and_as_quotients(heading, label, unit):
    wording = wordings([heading])[heading]
    assert (wording.label, wording.unit) == (label, unit)


def test_letters_with_accents_stay_in_names():
    headings = ["Höhe (m)", "Année", "Straße", "Øl", "Łódź"]
    names = [wording.name for wording in wordings(headings).values()]
    assert names == ["Hoehe_m", "Annee", "Strasse", "Ol", "Lodz"]
