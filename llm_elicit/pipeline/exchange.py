"""A run in the formats of other tools.

- An *Inspect* log holds every question with its reply, as `inspect view` shows them.
- An *Every Eval Ever* record holds each judge's results with their intervals, and a line for each
  answer, at the path below data/ at which the shared database of evaluations stores them.
- A *Croissant* data set is the table of judgments with a description of its columns, its origin and
  its licence, as Hugging Face, Kaggle and Google Dataset Search read them.

The first two have one file for each judge, since both describe an evaluation of one model. No file
holds an address, a key or a folder of this machine.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from uuid import uuid4

from llm_elicit._util.packages import package_version
from llm_elicit.backends import provider_of
from llm_elicit.comparisons.table_files import plain_cells
from llm_elicit.config.judges import Judge
from llm_elicit.errors import InputError
from llm_elicit.pipeline.manifest import write_atomically
from llm_elicit.pipeline.run_folder import AUDIT, COMPARISONS, Run
from llm_elicit.questions.template import Prompt

if TYPE_CHECKING:
    from llm_elicit.audit.inference import Interval
    from llm_elicit.audit.record import JudgeAudit

Format = Literal["inspect", "eee", "croissant"]

EEE_VERSION = "0.3.0"
"""The version of Every Eval Ever's schemas."""

_LEVEL = 0.95
"""The level of the audit's intervals."""

_FACTS = ("pair", "order", "template", "presentation")
"""The columns of the table that both formats state of a question."""

_RELIABILITY = "share of the variation of the answers that the two points of a pair predict (R²)"
_AUC = (
    "probability that the utility of a row of the data is higher than that of a random point (AUC)"
)

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
    is_audited = (run.folder / AUDIT).is_file()
    audits = {audit.name: audit for audit in (run.audit.judges if is_audited else ())}
    prompts, paths = {prompt.hash: prompt for prompt in run.prompts()}, []
    for judge in run.campaign.judges:
        if judge.name not in table.judges:
            continue
        rows = table.of(judge.name)
        cells = zip(*(plain_cells(rows[name]) for name in rows), strict=True)
        records = [dict(zip(map(str, rows), row, strict=True)) for row in cells]
        answers = _JudgeAnswers(run, judge, records, prompts, audits.get(judge.name))
        if format == "inspect":
            paths.append(_write_json(folder / f"{judge.name}.json", answers.inspect_log()))
            continue
        model, created = answers.model.replace("/", "_"), datetime.now(UTC).timestamp()
        identifier = f"{run.campaign.name}/{model}/{created:.0f}"
        provider, _, name = answers.model.partition("/")
        path = f"data/{run.campaign.name}/{provider}/{name.replace('/', '_')}/{uuid4()}"
        samples, document = folder / f"{path}_samples.jsonl", folder / f"{path}.json"
        samples.parent.mkdir(parents=True, exist_ok=True)
        lines = [answers.every_eval_sample(identifier, row) for row in records]
        dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
        write_atomically(samples, "".join(dump(line) + "\n" for line in lines))
        content = samples.read_bytes()
        record = answers.every_eval_record(identifier, samples.relative_to(folder), content)
        paths += [_write_json(document, record), samples]
    return paths


class _Result(NamedTuple):
    """A number of the audit with its interval.

    Attributes:
        name: its name in the files.
        description: what it is.
        interval: the value and its 95 % interval.
        least: the smallest value possible; the largest is 1.
    """

    name: str
    description: str
    interval: Interval
    least: float


@dataclass(frozen=True)
class _JudgeAnswers:
    """The answers of one judge, and the results of its audit.

    Attributes:
        run: the run.
        judge: the judge's settings.
        rows: its rows of the table of judgments; None for empty cells.
        prompts: the questions of the run by their hash.
        audit: its audit; None if the run was not audited.
    """

    run: Run
    judge: Judge
    rows: list[dict[str, Any]]
    prompts: dict[str, Prompt]
    audit: JudgeAudit | None

    @property
    def model(self) -> str:
        """The judge's model as provider/model."""
        return _model(self.judge)

    @property
    def verdict(self) -> dict[str, str]:
        """The verdict by its name; empty without an audit."""
        return {} if self.audit is None else {"verdict": self.audit.preference.verdict}

    @property
    def results(self) -> list[_Result]:
        """The reliability and the AUC, as far as they were measured."""
        if self.audit is None:
            return []
        results, discrimination = [], self.audit.discrimination
        if (reliability := self.audit.preference.reliability) is not None:
            results.append(_Result("reliability", _RELIABILITY, reliability, -1.0))
        if discrimination is not None:
            results.append(_Result("auc", _AUC, discrimination.auc, 0.0))
        return results

    def settings(self, *names: str) -> dict[str, Any]:
        """Return those of the judge's settings that are stated."""
        settings = {name: getattr(self.judge, name, None) for name in names}
        return {name: value for name, value in settings.items() if value is not None}

    def facts(self, row: dict[str, Any], *names: str) -> dict[str, Any]:
        """Return the metadata of a question, further cells of its row, and its two points."""
        points = (f"{side}_{name}" for side in "ab" for name in self.run.space.names)
        return {name: row[name] for name in (*_FACTS, *names, *points) if name in row}

    def messages(self, row: dict[str, Any]) -> list[dict[str, str]]:
        """Return the messages of a question; its hash where the template was changed since."""
        prompt = self.prompts.get(row["prompt_hash"])
        if prompt is None:
            return [{"role": "user", "content": f"(prompt {row['prompt_hash']})"}]
        return [{"role": turn.role, "content": turn.content} for turn in prompt.messages]

    def inspect_log(self) -> dict[str, Any]:
        """Return an Inspect log (version 2)."""
        run, rows = self.run, self.rows
        samples = [self.inspect_sample(row) for row in rows]
        counted = sum(row["probability"] is not None for row in rows)
        times = sorted(_time(row["asked_at"]) for row in rows)
        metrics = {}
        for name, description, interval, _ in self.results:
            ends = interval.low, interval.high
            about = {"description": description, "interval": ends, "level": _LEVEL}
            metrics[name] = {"name": name, "value": interval.value, "metadata": about}
        numbers = list(dict.fromkeys(sample["id"] for sample in samples))
        return {
            "version": 2,
            "status": "success",
            "eval": {
                "created": times[0],
                "task": run.campaign.name,
                "task_version": 0,
                "dataset": {
                    "name": run.space.name,
                    "samples": len(numbers),
                    "sample_ids": numbers,
                    "shuffled": False,
                },
                "model": self.model,
                "model_generate_config": self.settings("temperature", "max_tokens", "seed"),
                "config": {"epochs": max(row["replicate"] for row in rows) + 1},
                "packages": {"llm_elicit": package_version()},
                "metadata": {"judge": self.judge.name, **self.verdict},
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
                        "scored_samples": counted,
                        "unscored_samples": len(rows) - counted,
                        "metrics": metrics,
                    }
                ],
            },
            "stats": {
                "started_at": times[0],
                "completed_at": times[-1],
                "model_usage": {self.model: _usage(*rows)},
            },
            "samples": samples,
        }

    def inspect_sample(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a question and its answer; without a right answer, the target is empty."""
        messages, verdict, value = self.messages(row), row["verdict"], row["probability"]
        reply = {"role": "assistant", "content": row["reply"], "source": "generate"}
        stop = _STOP_REASONS.get(verdict, "stop")
        return {
            "id": f"{row['pair']}-{row['order']}",
            "epoch": row["replicate"] + 1,
            "input": messages,
            "target": "",
            "messages": [*messages, reply],
            "output": {
                "model": row["model_answered"] or self.model,
                "choices": [{"message": reply, "stop_reason": stop}],
                "completion": row["reply"],
                "usage": _usage(row),
                "time": row["latency"],
            },
            "scores": {
                "preference": {"value": verdict if value is None else value, "answer": verdict}
            },
            "metadata": self.facts(row, "soft", "cached"),
            "model_usage": {self.model: _usage(row)},
            "completed_at": _time(row["asked_at"]),
        }

    def every_eval_record(self, identifier: str, samples: Path, content: bytes) -> dict[str, Any]:
        """Return an Every Eval Ever record of the results.

        Args:
            identifier: the record's own.
            samples: path of the file of the answers, one a line, below the folder of the records.
            content: of this file.
        """
        latest = max(_time(row["asked_at"]) for row in self.rows)
        templates = ", ".join(sorted({row["template"] for row in self.rows}))
        is_local = provider_of(self.judge).name == "local"
        results = [
            {
                "evaluation_name": f"{self.run.campaign.name}: {result.name}",
                "source_data": {"dataset_name": self.run.space.name, "source_type": "other"},
                "evaluation_timestamp": latest,
                "metric_config": {
                    "evaluation_description": result.description,
                    "lower_is_better": False,
                    "score_type": "continuous",
                    "min_score": result.least,
                    "max_score": 1.0,
                },
                "score_details": {
                    "score": result.interval.value,
                    "uncertainty": {
                        "confidence_interval": {
                            "lower": result.interval.low,
                            "upper": result.interval.high,
                            "confidence_level": _LEVEL,
                        },
                        "num_samples": len(self.rows),
                    },
                },
                "generation_config": {
                    "generation_args": self.settings("temperature", "max_tokens"),
                    "additional_details": {"template": templates},
                },
            }
            for result in self.results
        ]
        return {
            "schema_version": EEE_VERSION,
            "evaluation_id": identifier,
            "evaluation_timestamp": latest,
            "retrieved_timestamp": identifier.rpartition("/")[2],
            "source_metadata": {
                "source_name": self.run.campaign.name,
                "source_type": "evaluation_run",
                "source_organization_name": "unknown",
                "evaluator_relationship": "other",
            },
            "eval_library": {"name": "llm_elicit", "version": package_version()},
            "model_info": {
                "name": self.model,
                "id": self.model,
                "additional_details": {
                    "deployment_type": "self_deployed" if is_local else "unknown",
                    "model_availability": "open_weights" if is_local else "unknown",
                    "judge": self.judge.name,
                    **self.verdict,
                },
            },
            "evaluation_results": results,
            "detailed_evaluation_results": {
                "format": "jsonl",
                "file_path": samples.as_posix(),
                "hash_algorithm": "sha256",
                "checksum": hashlib.sha256(content).hexdigest(),
                "total_rows": len(self.rows),
            },
        }

    def every_eval_sample(self, identifier: str, row: dict[str, Any]) -> dict[str, Any]:
        """Return one answer. No answer is right or wrong: the score is P(a preferred)."""
        probability, verdict = row["probability"], row["verdict"]
        facts = self.facts(row, "replicate", "verdict")
        question = "\n\n".join(message["content"] for message in self.messages(row))
        return {
            "schema_version": f"instance_level_eval_{EEE_VERSION}",
            "evaluation_id": identifier,
            "model_id": self.model,
            "evaluation_name": self.run.campaign.name,
            "sample_id": f"{row['pair']}-{row['order']}-{row['replicate']}",
            "interaction_type": "single_turn",
            "input": {"raw": question, "reference": []},
            "output": {"raw": [row["reply"]]},
            "answer_attribution": [
                {
                    "turn_idx": 0,
                    "source": "output.raw",
                    "extracted_value": verdict,
                    "extraction_method": "log_probabilities" if row["soft"] else "custom",
                    "is_terminal": True,
                }
            ],
            "evaluation": {
                "score": -1.0 if probability is None else probability,
                "is_correct": False,
            },
            "token_usage": _usage(row),
            "performance": {"latency_ms": 1000.0 * row["latency"]},
            "error": verdict if probability is None else None,
            "metadata": {name: str(cell) for name, cell in facts.items()},
        }


def _usage(*rows: dict[str, Any]) -> dict[str, int]:
    prompt = sum(row["prompt_tokens"] for row in rows)
    answer = sum(row["completion_tokens"] for row in rows)
    return {"input_tokens": prompt, "output_tokens": answer, "total_tokens": prompt + answer}


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
    descriptions = {str(name): str(name).replace("_", " ") for name in frame.columns} | {
        f"{side}_{feature.name}": f"{feature.label} of point {side}, natural units"
        for side in "ab"
        for feature in run.space.features
    }
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"judgments/{name}",
            "name": f"judgments/{name}",
            "description": descriptions[str(name)],
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


def _write_json(path: Path, data: dict[str, Any]) -> Path:
    write_atomically(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def _model(judge: Judge) -> str:
    """Return the judge's model as provider/model."""
    return f"{getattr(judge, 'backend', 'judge')}/{judge.model_name or judge.name}"


def _time(text: str) -> str:
    """Return a time of the table as ISO 8601 with its zone."""
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).isoformat(timespec="seconds")
