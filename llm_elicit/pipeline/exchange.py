"""A run in the formats of other tools.

- An *Inspect* log holds every question with its reply, as `inspect view` shows them.
- An *Every Eval Ever* record holds each judge's results with their intervals, and a line for each
  answer, as the shared database of evaluations stores them.
- A *Croissant* data set is the table of judgments with a description of its columns, its origin and
  its licence, as Hugging Face, Kaggle and Google Dataset Search read them.

The first two have one file for each judge, since both describe an evaluation of one model. No file
holds an address, a key or a folder of this machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llm_elicit._util.packages import LazyModule, package_version
from llm_elicit.config.judges import BaseJudge
from llm_elicit.errors import InputError
from llm_elicit.pipeline.manifest import write_atomically
from llm_elicit.pipeline.run_folder import AUDIT, COMPARISONS, Run
from llm_elicit.questions import Prompt

if TYPE_CHECKING:
    import pandas as pd

    from llm_elicit.audit.record import JudgeAudit
else:
    pd = LazyModule("pandas")

Format = Literal["inspect", "eee", "croissant"]

EEE_VERSION = "0.2.1"
"""The version of Every Eval Ever's schemas."""

_FACTS = ("pair", "order", "template", "presentation")
"""The columns of the table that both formats state of a question."""

_STOP_REASONS = {"truncated": "max_tokens", "refusal": "content_filter"}
"""Inspect's stop reasons by verdict; "stop" for any other."""


def export_run(run: Run, folder: Path, format: Format, license: str | None = None) -> list[Path]:
    """Write a run in the format of another tool.

    Args:
        run: a run that was asked; its results are added if it was audited.
        folder: the folder to write to, new or empty.
        format: name of the format, see the docstring of this module.
        license: the licence of the data set, an SPDX identifier or an address; for Croissant only.

    Returns:
        The files written.

    Raises:
        InputError: the folder is not empty or cannot be written, there are no answers, or a licence
            was given for a format that has no place for it.

    Example (`tests/pipeline/test_exchange.py` runs it)::

        run = le.Run.open("simulated")
        export_run(run, Path("logs"), "inspect")  # then: inspect view --log-dir logs
    """
    if license is not None and format != "croissant":
        raise InputError(f"export: {format} files have no licence; use --format croissant")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: exists and is not an empty folder; name a new one")
    table = run.comparisons
    if not len(table):
        raise InputError(f"{run.folder}: has no answers; `llm-elicit run {run.folder}` asks")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}); check it") from None
    if format == "croissant":
        return _write_croissant(run, folder, license)
    prompts = {prompt.hash: prompt for prompt in run.prompts()}
    audits = {judge.name: judge for judge in _audited(run)}
    write = {"inspect": _write_inspect, "eee": _write_every_eval}[format]
    written = []
    for judge in run.campaign.judges:
        if judge.name in table.judges:
            rows = table.of(judge.name)
            written += write(run, judge, rows, prompts, audits.get(judge.name), folder)
    return written


def _audited(run: Run) -> list[JudgeAudit]:
    return run.audit.judges if (run.folder / AUDIT).is_file() else []


def _write_json(path: Path, data: dict[str, Any]) -> Path:
    write_atomically(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def _results(
    audit: JudgeAudit | None,
) -> Iterator[tuple[str, str, float, tuple[float, float], float]]:
    """Yield the name, the description, the value, the interval and the level of each result."""
    if audit is None:
        return
    reliability = audit.preference.reliability
    if reliability is not None:
        text = "share of the variation of the answers that the two points of a pair predict (R²)"
        interval = (reliability.low, reliability.high)
        yield "reliability", text, reliability.value, interval, 0.9
    if audit.discrimination is not None:
        auc = audit.discrimination.auc
        text = (
            "probability that the utility of a row of the data is higher than that of a random "
            "point (AUC)"
        )
        yield "auc", text, auc.value, (auc.low, auc.high), 0.95


def _write_inspect(
    run: Run,
    judge: BaseJudge,
    rows: pd.DataFrame,
    prompts: dict[str, Prompt],
    audit: JudgeAudit | None,
    folder: Path,
) -> list[Path]:
    """Write an Inspect log (version 2) of one judge."""
    model = _model(judge)
    samples = [_inspect_sample(run, row, prompts, model) for row in _records(rows)]
    usage = {model: _usage(rows["prompt_tokens"].sum(), rows["completion_tokens"].sum())}
    verdict = {} if audit is None else {"verdict": audit.preference.verdict}
    created = _time(rows["asked_at"].min())
    log = {
        "version": 2,
        "status": "success",
        "eval": {
            "created": created,
            "task": run.campaign.name,
            "task_version": 0,
            "dataset": {
                "name": run.space.name,
                "samples": len({sample["id"] for sample in samples}),
                "sample_ids": list(dict.fromkeys(sample["id"] for sample in samples)),
                "shuffled": False,
            },
            "model": model,
            "model_generate_config": _settings(judge, ("temperature", "max_tokens", "seed")),
            "config": {"epochs": int(rows["replicate"].max()) + 1},
            "packages": {"llm_elicit": package_version()},
            "metadata": {"judge": judge.name, **verdict},
            "scorers": [{"name": "preference"}],
        },
        "plan": {"name": "llm_elicit", "steps": [], "config": {}},
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(samples),
            "scores": [
                {
                    "name": "preference",
                    "scorer": "preference",
                    "scored_samples": int(rows["probability"].notna().sum()),
                    "unscored_samples": int(rows["probability"].isna().sum()),
                    "metrics": {
                        name: {
                            "name": name,
                            "value": value,
                            "metadata": {
                                "description": text, "interval": interval, "level": level
                            },
                        }
                        for name, text, value, interval, level in _results(audit)
                    },
                }
            ],
        },
        "stats": {
            "started_at": created,
            "completed_at": _time(rows["asked_at"].max()),
            "model_usage": usage,
        },
        "samples": samples,
    }  # fmt: skip
    return [_write_json(folder / f"{judge.name}.json", log)]


def _inspect_sample(
    run: Run, row: dict[str, Any], prompts: dict[str, Prompt], model: str
) -> dict[str, Any]:
    """Return a question and its answer as a sample; without a right answer, the target is empty."""
    messages = _messages(row, prompts)
    reply = {"role": "assistant", "content": row["reply"], "source": "generate"}
    stop = _STOP_REASONS.get(row["verdict"], "stop")
    choices = [{"message": reply, "stop_reason": stop}]
    used = _usage(row["prompt_tokens"], row["completion_tokens"])
    chosen = not pd.isna(row["probability"])
    value = row["probability"] if chosen else row["verdict"]
    return {
        "id": f"{row['pair']}-{row['order']}",
        "epoch": int(row["replicate"]) + 1,
        "input": messages,
        "target": "",
        "messages": [*messages, reply],
        "output": {
            "model": row["model_answered"] or model,
            "choices": choices,
            "completion": row["reply"],
            "usage": used,
            "time": row["latency"],
        },
        "scores": {"preference": {"value": value, "answer": row["verdict"]}},
        "metadata": {
            name: _plain(row[name])
            for name in (*_FACTS, "soft", "cached", *_points(run))
            if name in row
        },
        "model_usage": {model: used},
        "completed_at": _time(row["asked_at"]),
    }


def _messages(row: dict[str, Any], prompts: dict[str, Prompt]) -> list[dict[str, str]]:
    """Return the messages of a question; its hash where the template was changed since."""
    prompt = prompts.get(row["prompt_hash"])
    if prompt is None:
        return [{"role": "user", "content": f"(prompt {row['prompt_hash']})"}]
    return [{"role": turn.role, "content": turn.content} for turn in prompt.messages]


def _usage(prompt: float, completion: float) -> dict[str, int]:
    return {
        "input_tokens": int(prompt),
        "output_tokens": int(completion),
        "total_tokens": int(prompt + completion),
    }


def _write_every_eval(
    run: Run,
    judge: BaseJudge,
    rows: pd.DataFrame,
    prompts: dict[str, Prompt],
    audit: JudgeAudit | None,
    folder: Path,
) -> list[Path]:
    """Write a record of a judge's results, and a line for each answer."""
    model, now = _model(judge), datetime.now(UTC)
    identifier = f"{run.campaign.name}/{model.replace('/', '_')}/{now.timestamp():.0f}"
    lines = [_every_eval_line(run, row, prompts, model, identifier) for row in _records(rows)]
    text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
    samples = folder / f"{judge.name}.samples.jsonl"
    write_atomically(samples, text)
    data = {"dataset_name": run.space.name, "source_type": "other"}
    results = [
        {
            "evaluation_name": f"{run.campaign.name}: {name}",
            "source_data": data,
            "evaluation_timestamp": _time(rows["asked_at"].max()),
            "metric_config": {
                "evaluation_description": description,
                "lower_is_better": False,
                "score_type": "continuous",
                "min_score": 0.0 if name == "auc" else -1.0,
                "max_score": 1.0,
            },
            "score_details": {
                "score": value,
                "uncertainty": {
                    "confidence_interval": {
                        "lower": low, "upper": high, "confidence_level": level
                    },
                    "num_samples": len(rows),
                },
            },
            "generation_config": {
                "generation_args": _settings(judge, ("temperature", "max_tokens")),
                "additional_details": {"template": str(rows["template"].iloc[0])},
            },
        }
        for name, description, value, (low, high), level in _results(audit)
    ]  # fmt: skip
    verdict = {} if audit is None else {"verdict": audit.preference.verdict}
    record = {
        "schema_version": EEE_VERSION,
        "evaluation_id": identifier,
        "evaluation_timestamp": _time(rows["asked_at"].max()),
        "retrieved_timestamp": f"{now.timestamp():.0f}",
        "source_metadata": {
            "source_name": run.campaign.name,
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "other",
        },
        "eval_library": {"name": "llm_elicit", "version": package_version()},
        "model_info": {"name": model, "id": model, "additional_details": verdict},
        "evaluation_results": results,
        "detailed_evaluation_results": {
            "format": "jsonl",
            "file_path": samples.name,
            "hash_algorithm": "sha256",
            "checksum": hashlib.sha256(text.encode()).hexdigest(),
            "total_rows": len(lines),
        },
    }
    return [_write_json(folder / f"{judge.name}.json", record), samples]


def _every_eval_line(
    run: Run, row: dict[str, Any], prompts: dict[str, Prompt], model: str, identifier: str
) -> dict[str, Any]:
    """Return one answer. No answer is right or wrong: the score is P(a preferred)."""
    question = "\n\n".join(message["content"] for message in _messages(row, prompts))
    chosen = not pd.isna(row["probability"])
    facts = [name for name in (*_FACTS, "replicate", "verdict", *_points(run)) if name in row]
    return {
        "schema_version": f"instance_level_eval_{EEE_VERSION}",
        "evaluation_id": identifier,
        "model_id": model,
        "evaluation_name": run.campaign.name,
        "sample_id": f"{row['pair']}-{row['order']}-{row['replicate']}",
        "interaction_type": "single_turn",
        "input": {"raw": question, "reference": []},
        "output": {"raw": [row["reply"]]},
        "answer_attribution": [
            {
                "turn_idx": 0,
                "source": "output.raw",
                "extracted_value": row["verdict"],
                "extraction_method": "log_probabilities" if row["soft"] else "custom",
                "is_terminal": True,
            }
        ],
        "evaluation": {"score": row["probability"] if chosen else -1.0, "is_correct": False},
        "token_usage": _usage(row["prompt_tokens"], row["completion_tokens"]),
        "performance": {"latency_ms": 1000.0 * row["latency"]},
        "error": None if chosen else row["verdict"],
        "metadata": {name: str(_plain(row[name])) for name in facts},
    }


_CROISSANT_TERMS = (
    "citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty",
    "fileSet", "format", "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField",
    "path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate", "separator",
    "source", "subField", "transform",
)  # fmt: skip
_CROISSANT_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
} | {term: f"cr:{term}" for term in _CROISSANT_TERMS}
"""The context of Croissant 1.0, which a description has to state whole."""

_DATA_TYPES = {"i": "sc:Integer", "f": "sc:Float", "b": "sc:Boolean", "M": "sc:DateTime"}


def _write_croissant(run: Run, folder: Path, license: str | None) -> list[Path]:
    """Write the table of judgments with its description, `croissant.json`."""
    table = run.comparisons
    path = table.write(folder / COMPARISONS)
    frame = table.frame
    days = sorted(frame["asked_at"].str[:10])
    judges = ", ".join(f"{judge.name} ({_model(judge)})" for judge in run.campaign.judges)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"judgments/{name}",
            "name": f"judgments/{name}",
            "description": _column_description(run, str(name)),
            "dataType": _DATA_TYPES.get(frame[name].dtype.kind, "sc:Text"),
            "source": {"fileObject": {"@id": path.name}, "extract": {"column": str(name)}},
        }
        for name in frame.columns
    ]
    data = {
        "@context": _CROISSANT_CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": run.campaign.name,
        "description": (
            f"Pairwise judgments about {run.space.title}: of two points, which is more plausible? "
            f"Asked of {judges}."
        ),
        "version": "1.0.0",
        "datePublished": days[-1],
        "license": license,
        "rai:dataCollection": (
            f"Asked by llm_elicit {package_version()} with the template "
            f"{', '.join(sorted(set(frame['template'])))}, from {days[0]} to {days[-1]}; the pairs "
            f"follow from the seed {run.campaign.seed}."
        ),
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": path.name,
                "name": path.name,
                "contentUrl": path.name,
                "contentSize": f"{path.stat().st_size} B",
                "encodingFormat": "application/x-parquet",
                "sha256": digest,
            }
        ],
        "recordSet": [
            {"@type": "cr:RecordSet", "@id": "judgments", "name": "judgments", "field": fields}
        ],
    }
    described = {key: value for key, value in data.items() if value is not None}
    return [_write_json(folder / "croissant.json", described), path]


def _column_description(run: Run, column: str) -> str:
    """Return a description of a column of the table."""
    labels = {feature.name: feature.label for feature in run.space.features}
    side, _, name = column.partition("_")
    if side in ("a", "b") and name in labels:
        return f"{labels[name]} of point {side}, natural units"
    return column.replace("_", " ")


def _points(run: Run) -> list[str]:
    """Return the columns of both points."""
    return [f"{side}_{name}" for side in "ab" for name in run.space.names]


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of the table as mappings."""
    return [{str(name): cell for name, cell in row.items()} for row in rows.to_dict("records")]


def _model(judge: BaseJudge) -> str:
    """Return the judge's model as provider/model."""
    return f"{getattr(judge, 'backend', 'judge')}/{judge.model_name or judge.name}"


def _settings(judge: BaseJudge, names: tuple[str, ...]) -> dict[str, Any]:
    settings = {name: getattr(judge, name, None) for name in names}
    return {name: value for name, value in settings.items() if value is not None}


def _time(text: str) -> str:
    """Return a time of the table as ISO 8601 with its zone."""
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).isoformat(timespec="seconds")


def _plain(value: Any) -> Any:
    """Return a cell as JSON data."""
    if pd.isna(value):
        return None
    if isinstance(value, pd.Timestamp):
        return value.date().isoformat()
    item: Callable[[], Any] | None = getattr(value, "item", None)
    return item() if item else value
