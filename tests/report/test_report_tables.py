"""Tables as CSV, Markdown and LaTeX: the audit's numbers, and names that try to do something."""

import re
import shutil
import subprocess

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_elicit._util.text import latex, markdown
from llm_elicit.audit.record import Audit, JudgeEvidence, audit_run
from llm_elicit.audit.reference import AuditSettings, Reference
from llm_elicit.report.tables import (
    as_latex,
    as_markdown,
    audit_numbers,
    audit_table,
    direct_table,
    feature_table,
    write_tables,
)

PDFLATEX = shutil.which("pdflatex")
ATTACKS = (
    r"\input{/etc/passwd}", r"\write18{touch owned}", r"}\end{tabular}\input{x}", "a & b",
    "[1pt]x", "*x", "100% #1 $x$ a_b ~ ^^M", "=1+1", "a|b <script>x</script>", "![x](http://evil)",
    "--- ''' ``", 'quo"te', "Zoë Ñandú ž ß ł", "模型 \x1b[31m\u202e 🤖", "",
)  # fmt: skip


@pytest.fixture(scope="module")
def hostile(study) -> Audit:
    """An audit whose judges have the attacks for names."""
    one = study.audit.judges[0]
    named = [one.model_copy(update={"name": name}) for name in ATTACKS]
    return study.audit.model_copy(update={"judges": named})


def test_every_table_is_written_in_three_forms_inside_the_folder(hostile, tmp_path):
    written = write_tables(hostile, tmp_path / "tables")
    assert len({path.name for path in written}) == 3 * (1 + 2 * len(ATTACKS))
    assert {path.resolve().parent for path in written} == {tmp_path / "tables"}
    assert sorted(path.name for path in written if path.stem == "audit") == [
        "audit.csv", "audit.md", "audit.tex",
    ]  # fmt: skip
    assert all(path.is_file() for path in written)


def test_the_audit_table_holds_the_audits_numbers(study, tmp_path):
    write_tables(study.audit, tmp_path)
    read = pd.read_csv(tmp_path / "audit.csv").set_index("judge")
    for judge in study.audit.judges:
        row = read.loc[judge.name]
        assert row["verdict"] == judge.verdict
        assert row["p_value"] == judge.preference.p_value
        assert row["p_holm"] == judge.preference.p_holm
        assert row["position"] == pytest.approx(judge.preference.position.explained_share)
        assert row["w1_data"] == pytest.approx(judge.data_distance.wasserstein.mean, rel=1e-12)
        assert row["floor_data_sd"] == pytest.approx(
            study.audit.reference.data_floor.wasserstein.sd
        )
        assert row["order_bias_low"] == pytest.approx(judge.consistency.order_bias.low)
        assert row["agreement"] == pytest.approx(judge.consistency.agreement.value)
    text = audit_table(study.audit).set_index("Judge").loc["expert"]
    assert text["W1 to data"] == f"{read.loc['expert', 'w1_data']:.2f} ± " + (
        f"{read.loc['expert', 'w1_data_sd']:.2f}"
    )
    assert text["p"] == "≤ 0.01"
    reliability = study.audit.of("expert").preference.reliability
    assert read.loc["expert", "reliability"] == pytest.approx(reliability.value)
    assert read.loc["expert", "auc"] == 0.83
    assert text["AUC"] == "83% (79% to 87%)"


def test_features_stand_in_the_units_asked_in(study):
    table = feature_table(study.audit, study.audit.judges[0])
    assert table["Feature"].tolist()[:4] == ["income (USD)", "", "", "age (years)"]
    assert table["Of"].tolist()[:3] == ["data", "belief", "λ"]
    median = float(table.loc[1, "median"].replace(",", ""))
    assert median == pytest.approx(study.audit.judges[0].belief_summary[0].q50, rel=0.01)


def test_direct_answers_are_a_table_of_their_own(study, tmp_path):
    expert, stuck = study.audit.judges
    names = {path.name for path in write_tables(study.audit, tmp_path)}
    assert "expert-direct.csv" in names
    assert len([name for name in names if name.endswith("-direct.csv")]) == 1
    read = pd.read_csv(tmp_path / "expert-direct.csv")
    stated = expert.direct.stated_quantiles
    assert read["q50"][0] == stated[0].quantiles[2]
    assert read["stated_data"][1] == pytest.approx(stated[1].data)
    assert read["q50"].isna().tolist() == [False, False, True, True]
    assert (read["row_completion"] == 1.0).all()
    table = direct_table(study.audit, expert)
    assert table["5 %"].tolist()[2:] == ["", ""]
    assert stuck.direct is None


def test_without_data_distances_are_from_lambda(study):
    bare = Reference(study.audit.space, study.samples.sampling)
    settings = AuditSettings(size=50, repeats=2, flips=99)
    evidence = JudgeEvidence("expert", study.comparisons)
    audit = audit_run([evidence], bare, settings=settings)
    row = audit_table(audit).iloc[0]
    assert row["W1 to λ"] == "not measurable"
    assert row["Floor"] != "not measurable"
    assert audit_numbers(audit)["w1_data"].isna().all()


def test_names_are_escaped_against_spreadsheet_formulas(hostile, tmp_path):
    write_tables(hostile, tmp_path)
    names = pd.read_csv(tmp_path / "audit.csv", dtype=str, keep_default_na=False)["judge"]
    assert "'=1+1" in set(names)
    assert not names.str.match(r"[=+\-@\t\r\n]").any()


def test_a_markdown_table_has_the_same_cells_in_every_row(hostile):
    lines = as_markdown(audit_table(hostile)).splitlines()
    assert len(lines) == 2 + len(ATTACKS)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {11}


@given(st.text())
def test_markdown_is_escaped_and_keeps_the_text(text: str) -> None:
    cell = markdown(text)
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_\[\]<>|~!#&$]", cell)
    assert "\n" not in cell
    if text.isascii() and text.isprintable():
        assert re.sub(r"\\(.)", r"\1", cell) == " ".join(text.split())


# All that may stand in a cell: these, and characters that are only themselves.
_SAFE = re.compile(
    r"\\textbackslash\{\}|\\textasciitilde\{\}|\\textasciicircum\{\}|\\char34\{\}"
    r"|\\[&%$#_{}]|\{[]\[*`]?\}|\$[<>|-]\$|\$\\(?:lambda|pm|leq|times|mu)\$|\$\^(?:\{\\circ\}|[23])\$"
    r"|\\(?:ss|ae|AE|o|O|l|L)\{\}|\\[`'^~=u.\"rHvc]\{[A-Za-z]\}"
)


@given(
    st.one_of(
        st.text(), st.text(alphabet="\\{}[]$&#^_~%*`'\"-| \nainput/λé"), st.sampled_from(ATTACKS)
    )
)
def test_latex_commands_are_escaped(text: str) -> None:
    cell = latex(text)
    assert cell.isascii()
    assert not re.search(r"[\\{}$&#^_~%\[\]*`\"<>|\n]", _SAFE.sub("", cell)), cell


def test_latex_of_each_attack_is_its_text():
    assert latex(r"\input{/etc/passwd}") == r"\textbackslash{}input\{/etc/passwd\}"
    assert latex("a & b_c") == r"a \& b\_c"
    assert latex("[1pt]") == "{[}1pt{]}"
    assert latex("--'") == "-{}-'"
    assert latex("Zoë 模") == r"Zo\"{e} \textbackslash{}u6a21"
    lines = as_latex(pd.DataFrame({"a": list(ATTACKS), "b": "x"})).splitlines()
    assert lines[0] == r"\begin{tabular}{ll}"
    assert [line[-5:] for line in lines[4:-2]] == [r" x \\"] * len(ATTACKS)


@pytest.mark.skipif(PDFLATEX is None, reason="pdfLaTeX is not installed")
def test_latex_sets_the_tables(hostile, tmp_path):
    names = [path.name for path in write_tables(hostile, tmp_path) if path.suffix == ".tex"][:3]
    body = "\n\n".join(f"\\input{{{name}}}" for name in names)
    document = f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}{body}"
    (tmp_path / "paper.tex").write_text(f"{document}\\end{{document}}\n")
    command = [PDFLATEX, "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-1500:]
    assert not (tmp_path / "owned").exists()
