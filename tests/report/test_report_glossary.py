"""Every number leads to its definition, which stands in one place.

tests/test_docs.py finds the same definitions in the documentation.
"""

import re

from llm_elicit.comparisons.table_files import VERDICTS
from llm_elicit.report.page import GLOSSARY

# Columns that name something and hold no number.
NAMES = {
    "Box",
    "Expert",
    "Judge",
    "Feature",
    "Features",
    "Sample",
    "Between",
    "Model",
    "Raters",
    "option A",
    "option B",
}


def plain(text: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", "", text).split())


def test_every_column_of_numbers_leads_to_its_definition(page):
    headers = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', page, re.S)
    bare = {plain(header) for header in headers if 'href="#term-' not in header}
    assert bare == NAMES
    assert len(headers) > 40
    assert {plain(header) for header in headers} >= set(VERDICTS)


def test_a_definition_is_shown_on_hover_and_written_once(reader):
    text = " ".join("".join(reader.text).split())
    for key, entry in GLOSSARY.items():
        assert text.count(entry.definition) == 1
        found = {a["title"] for a in reader.all("a") if a.get("href") == f"#term-{key}"}
        assert found <= {entry.definition}
        for reference in entry.references:
            assert reference in text
    unused = {k for k in GLOSSARY if not [a for a in reader.all("a") if a["href"] == f"#term-{k}"]}
    # No triads were asked here and no probabilities of rows: test_report_page.py has them; nor are
    # there categories.
    assert unused <= {"cycles", "own-density", "repeated-cycles", "shares"}
