"""The page that makes a campaign: a form beside the YAML that it edits, a dry run, and the start.

So that it is known which fields were changed, the form repeats the texts that its fields were made
of. See `llm_elicit.service.form_fields`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.datastructures import UploadFile

from llm_elicit._util import files
from llm_elicit._util.packages import LazyModule
from llm_elicit._util.settings import parse_yaml, to_yaml
from llm_elicit._util.text import names_in
from llm_elicit.backends.local import downloaded_weights
from llm_elicit.config.campaign import Campaign, axis_word
from llm_elicit.errors import ElicitError, InputError
from llm_elicit.orchestrator import estimates
from llm_elicit.orchestrator.budget import Amount
from llm_elicit.orchestrator.people import experts_by_judge
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.pipeline.run_index import NAME
from llm_elicit.questions.template import PAIR_ANSWERS, Template
from llm_elicit.service import campaigns, form_fields, spaces
from llm_elicit.service.responses import ProblemError, sentence, status_of
from llm_elicit.service.schemas import DryRun
from llm_elicit.service.security import ADMIN, describe_action, normalized, page
from llm_elicit.service.settings import ServerSettings
from llm_elicit.service.spaces import TableReading, library_of
from llm_elicit.service.state import Service, Shared
from llm_elicit.spaces.naming import valid_name

if TYPE_CHECKING:
    from llm_elicit.pipeline import statistical_power
else:
    statistical_power = LazyModule("llm_elicit.pipeline.statistical_power")  # with PyTorch

router = APIRouter(prefix="/new", include_in_schema=False, dependencies=ADMIN)

_WORDINGS = "v2/*"
"""The pattern of the wordings over which the pairs of a new campaign are spread."""

_SEPARATORS = {"": "detect it", ",": "comma", ";": "semicolon", "\t": "tab", "|": "|"}
_SIMULATIONS = 20
"""Simulated campaigns of a size near the number of pairs that is needed."""


@dataclass(frozen=True)
class Edit:
    """The texts of a form with its changed fields.

    Attributes:
        yaml: the campaign.
        name: its name.
        space: the name of the uploaded space that the form edits; empty for none.
        space_yaml: its text.
        reading: how its table is to be read anew; None if nothing of that was changed.
        is_changed: whether the texts differ from those that the fields were made of.
        errors: messages by field.
    """

    yaml: str
    name: str = ""
    space: str = ""
    space_yaml: str = ""
    reading: TableReading | None = None
    is_changed: bool = False
    errors: dict[str, str] = field(default_factory=dict)


def edit(sent: Mapping[str, str], settings: ServerSettings) -> Edit:
    """Return the texts of a form with its changed fields; called in the process of a worker."""
    errors: dict[str, str] = {}
    name, texts, reading = sent.get("space_edited", ""), {"yaml": "", "space_yaml": ""}, None
    library = library_of(settings)
    if name and not library.names().get(name):
        return Edit(sent.get("yaml", ""), errors={"space": f"No uploaded space {name[:80]!r}."})
    folder = library.yaml_path(name).parent if name else Path()
    for key, source in (("yaml", campaigns.WHERE), ("space_yaml", f"{name}.yaml")):
        texts[key] = sent.get(key, "") + "\n"
        before = sent.get(f"{key}_before", "")
        if not before or (key == "space_yaml" and not name):
            continue
        try:
            read = form_fields.campaign_fields if key == "yaml" else form_fields.space_fields
            fields = read(parse_yaml(before, source))
            boxes = ("use:", "judge:")
            changes = {
                field: sent.get(field, "") for field, text in fields.items()
                if sent.get(field, "" if field.startswith(boxes) else text) != text
            }  # fmt: skip
            added = ("add:", "about:") if key == "yaml" else ("take:",)
            changes |= {field: text for field, text in sent.items() if field.startswith(added)}
            if set(form_fields.READING) & set(changes):
                reading = _reading_of(sent)
                continue
            if all(field.startswith("about:") for field in changes):
                parse_yaml(texts[key], source)
                continue
            document = form_fields.Document(texts[key], source)
            if key == "yaml":
                form_fields.edit_campaign(document, changes, form_fields.judge_options(settings))
            else:
                form_fields.edit_space(document, changes, folder)
            texts[key] = document.text
        except form_fields.FieldError as error:
            errors[error.name] = sentence(error)
        except InputError as error:
            errors[key] = sentence(error)
    called = ""
    with suppress(InputError):
        called = str(form_fields.value_at(parse_yaml(texts["yaml"], campaigns.WHERE), "name"))
    is_changed = any(
        normalized(texts[key]) != sent.get(f"{key}_before", "") for key in texts if key in sent
    )
    return Edit(
        **texts, name=called, space=name, reading=reading, is_changed=is_changed, errors=errors
    )


def _reading_of(sent: Mapping[str, str]) -> TableReading:
    """Return how a table is to be read, by the fields of a form."""
    stated = {part: sent.get(part, "") for part in form_fields.READING[:3]}
    return TableReading(not_stated=names_in(sent.get("not_stated", "")), **stated)


@dataclass(frozen=True)
class Evaluation:
    """What is known of a campaign before it starts.

    Attributes:
        campaign: the campaign.
        rows: which rows of the table are used; empty without a table.
        dry_run: its questions and costs, if they are asked for.
        cap: what is asked within a cap that the costs exceed; empty if they do not.
        refusal: why it could not start now; empty if it could.
        power: by question of the power analysis, its label, the power with the campaign's pairs,
            the pairs that are needed with their interval, and their costs.
    """

    campaign: Campaign
    rows: str = ""
    dry_run: DryRun | None = None
    cap: str = ""
    refusal: str = ""
    power: tuple[dict[str, Any], ...] = ()


def evaluate(
    text: str, settings: ServerSettings, action: str, reliability: float | None
) -> Evaluation:
    """Return what is known of a campaign; called in the process of a worker.

    Raises:
        InputError: it breaks a rule, or names what the server does not allow.
    """
    campaign = campaigns.read_untrusted(text.encode(), "yaml", settings)
    space = campaign.load_space()
    rows = ""
    if space.table is not None:
        counts = space.table_rows()
        rows = f"{counts}; {counts.scarce}" if counts.scarce else str(counts)
    evaluation = Evaluation(campaign, rows)
    if action == "power":
        result = statistical_power.power(
            campaign, questions=("verdict", "effect"), reliability=reliability, answers="choices",
            simulations=_SIMULATIONS,
        )  # fmt: skip
        lines = [
            {"label": line.label, "own": line.own.power.value, "pairs": line.pairs,
             "low": line.low, "high": line.high, "most": line.most, "cost": line.cost}
            for line in result.questions
        ]  # fmt: skip
        return replace(evaluation, power=tuple(lines))
    if action == "preview":
        return evaluation
    dry_run = campaigns.dry_run_of(campaign, examples=True)
    refusal = ""
    try:
        campaigns.check_judges(campaign)
    except InputError as error:
        refusal = sentence(error)
    cap = estimates.cap_note(dry_run.judges, campaign.limits, Amount()) or ""
    return replace(evaluation, dry_run=dry_run, refusal=refusal, cap=cap)


@cache
def wordings() -> dict[str, str]:
    """Return the wordings of questions about pairs: patterns of several, and templates."""
    names = files.available("prompts", ".md")
    languages = {
        "": "English", "de/": "German", "es/": "Spanish", "fr/": "French", "zh/": "Chinese",
    }  # fmt: skip
    several = {
        f"v2/{folder}*": f"several {language} wordings, spread over the pairs"
        for folder, language in languages.items()
        if any(name.startswith(f"v2/{folder}") for name in names)
    }
    templates = {}
    for name in names:
        with suppress(InputError):
            template = Template.read(files.find("prompts", name, ".md"))
            if template.answer in PAIR_ANSWERS:
                templates[name] = f"only {name}"
    return several | templates


def view(text: str, settings: ServerSettings, space_text: str | None = None) -> dict[str, Any]:
    """Return the template variables of a campaign's form; called in the process of a worker.

    Args:
        text: the campaign.
        settings: what it may name.
        space_text: the YAML of its space; that of the uploaded one by default.

    Raises:
        InputError: a text is not a YAML mapping.
    """
    data, library = form_fields.Document(text, campaigns.WHERE).data, library_of(settings)
    names, stated = library.names(), form_fields.mappings_in(data, "judges")
    judges = []
    for judge in stated:
        try:
            facts, problem = form_fields.judge_facts(form_fields.judge_of(judge)), ""
        except InputError as error:
            facts, problem = (), str(error)
        model = f": {judge['model']}" if judge.get("model") else ""
        label = f"{judge['name']} ({judge.get('backend')}{model})"
        judges.append(form_fields.JudgeOption(judge["name"], judge, label, facts, problem=problem))
    present = [{key: judge[key] for key in judge if key != "name"} for judge in stated]
    options = [
        o for o in form_fields.judge_options(settings) if o.asks or o.settings not in present
    ]
    fields = form_fields.campaign_fields(data)
    context = {
        "fields": fields, "judges": judges, "options": options, "wordings": wordings(),
        "spaces": sorted(names), "space": "", "space_yaml": "", "features": [], "left_out": [],
        "guesses": {}, "notes": [], "yaml": text, "others": "",
    }  # fmt: skip
    if not fields["wording"]:
        stated_wordings = form_fields.value_at(data, "design", "presentations", "wordings")
        context["others"] = ", ".join(map(str, stated_wordings))
    name = fields["space"]
    if not names.get(name):  # it was not uploaded
        return context
    path = library.yaml_path(name)
    space_text = path.read_text("utf-8") if space_text is None else space_text
    space = form_fields.Document(space_text, path.name)
    report = spaces.read_report(path.parent)
    features = form_fields.mappings_in(space.data, "features")
    headings = [form_fields.heading_of(space.data, feature["name"]) for feature in features]
    left_out = [
        (number, line) for number, line in enumerate(report["columns"])
        if line["column"] not in headings
    ]  # fmt: skip
    return context | {
        "space": name, "space_yaml": space_text,
        "fields": fields | form_fields.space_fields(space.data), "notes": report["notes"],
        "features": list(zip(features, headings, strict=True)), "left_out": left_out,
        "guesses": form_fields.guesses_of(space),
    }  # fmt: skip


def starter(name: str, settings: ServerSettings, taken: Sequence[str]) -> str:
    """Return a campaign to begin with, with the local model if its weights are there."""
    facets = {"wordings": _WORDINGS, "examples": "*", "features": "shuffled"}
    ready = [
        option for option in form_fields.judge_options(settings)
        if option.settings["backend"] == "local" and not option.problem
        and downloaded_weights(str(option.settings.get("model", "")))
    ]  # fmt: skip
    data = {
        "name": form_fields.free_name(axis_word(name)[:60] or "campaign", taken),
        "space": name,
        "design": {"pairs": 200, "presentations": facets},
        "judges": [option.judge("") for option in ready[:1]],
    }
    return to_yaml(data)


_PLACES = (
    (r"name:", "called"), (r"design\.pairs", "pairs"), (r"limits|.*costs money", "max_cost"),
    (r"(no feature )?space|given", "space"), (r"judges?\b", "judges"),
    (r"no template|design\.(template|presentations)|.*[Tt]emplate", "wording"),
)  # fmt: skip
"""Patterns of messages on a campaign, and the fields beside which they stand."""


def place_of(message: str, sent: Mapping[str, str], features: Sequence[str]) -> str:
    """Return the field beside which a message stands.

    Args:
        message: the message, which begins with the source.
        sent: the fields of the form.
        features: the names of the features in their order.

    Examples:
        >>> place_of("campaign: design.pairs: must be at least 2", {}, [])
        'pairs'
        >>> place_of("t.yaml: features.0: x: low 5 must be below high 3", {"low:x": "5"}, ["x"])
        'low:x'
    """
    source, _, rest = message.partition(": ")
    feature = re.match(r"features\.(\d+)[.:] ?(.*)", rest)
    if feature and int(feature[1]) < len(features):
        name = features[int(feature[1])]
        keys = [f"{key}:{name}" for key in re.findall(r"[a-z]+", feature[2])]
        return next((key for key in keys if key in sent), f"label:{name}")
    if source == "power":
        return "reliability"
    if re.match("a (deleted )?campaign", source):
        return "called"
    if source.endswith(".yaml") or source.startswith("feature space"):
        return "space_yaml"
    return next((field for form, field in _PLACES if re.match(form, rest)), "yaml")


@router.get("")
async def new_page(
    request: Request,
    service: Shared,
    space: Annotated[str, Query(max_length=80)] = "",
    example: Annotated[str, Query(alias="from", max_length=200)] = "",
    clone: Annotated[str, Query(pattern=f"({NAME})?")] = "",
) -> Response:
    """Return the form, for an uploaded space, an example, or a clone of a campaign."""
    text = (await _allowed_examples(service)).get(example, "")
    if clone:
        text = await asyncio.to_thread(_clone_of, await service.run(clone))
    if space:
        taken = [path.name for path in service.runtime.folder.glob("*")]
        text = await service.workers.call(starter, space, service.settings, taken)
    return await _page(request, service, text)


async def _page(
    request: Request, service: Service, text: str, status: int = 200, **more: Any
) -> Response:
    """Return the page with the fields of a campaign; without a text, what it can begin with."""
    context: dict[str, Any] = {
        "before": {}, "errors": {}, "sent": {}, "evaluation": None, "said": "", "upload": {},
        "reliability": "0.5", "examples": list(await _allowed_examples(service)),
        "suffixes": spaces.SUFFIXES, "separators": _SEPARATORS, "fields": {}, "guesses": {},
        "space": "", "yaml": text, "space_yaml": "", "judges": None, "spaces": [],
    }  # fmt: skip
    if not text:
        context["spaces"] = sorted(await asyncio.to_thread(library_of(service.settings).names))
    else:
        space_text = more.pop("space_text", None)
        with suppress(InputError):  # neither the text nor one before can be read
            context |= await service.workers.call(view, text, service.settings, space_text)
        context["before"] = {key: context[key] for key in ("yaml", "space_yaml")}
    context |= more
    # A refused form comes back as it was filled in.
    context["fields"] = {**context["fields"], **context["sent"]}
    return page(request, "new", status, **context, begun=bool(text))


@router.post("/table")
async def upload(request: Request, service: Shared) -> Response:
    """Store a table, draft its columns, and redirect to the form that begins with them."""
    form = await request.form()
    stated = {name: normalized(text) for name, text in form.items() if isinstance(text, str)}
    file = form.get("table")
    try:
        if not isinstance(file, UploadFile) or not file.filename:
            raise ProblemError(422, "choose a file")
        path = Path(file.filename)
        suffix = {".tsv": ".csv", ".txt": ".csv"}.get(path.suffix.lower(), path.suffix.lower())
        if suffix not in spaces.SUFFIXES:
            known = ", ".join(spaces.SUFFIXES)
            raise ProblemError(422, f"{path.name[:80]!r} is not of the formats {known}")
        names = await asyncio.to_thread(library_of(service.settings).names)
        stem = valid_name(path.stem)[:50].strip("_")
        stem = stem if stem[:1].isalpha() else f"table_{stem}".strip("_")
        name = stated.get("space_name") or form_fields.free_name(stem, names, "_")
        content = await file.read()
        await spaces.add_table(service, name, suffix, content, _reading_of(stated))
    except (ElicitError, ProblemError) as error:
        more = {"errors": {"table": sentence(error)}, "upload": stated}
        return await _page(request, service, "", status_of(error), **more)
    return RedirectResponse(f"/new?space={name}", 303)


@router.post("")
async def compose(request: Request, service: Shared) -> Response:
    """Write what was changed into the YAML, and do what the button says.

    A campaign starts only as its dry run has shown it.
    """
    form = await request.form()
    sent = {name: normalized(text) for name, text in form.items() if isinstance(text, str)}
    if not (sent.get("yaml", "").strip() or sent.get("yaml_before")):
        nothing = "Nothing to try: begin with a table, a feature space, an example or YAML."
        return await _page(request, service, "", 422, errors={"yaml": nothing})
    action, _, pairs = sent.pop("action", "preview").partition(":")
    if pairs:
        sent["pairs"] = pairs
    edited = await service.workers.call(edit, sent, service.settings)
    errors, said, evaluation, status = dict(edited.errors), "", None, 422
    is_tried = "tried" in sent and not edited.is_changed
    try:
        reliability = float(sent.get("reliability") or 0.5)
    except ValueError:
        errors["reliability"], reliability = "Give a number between 0 and 1.", 0.5
    if not errors:
        try:
            if action in ("dry-run", "start", "create") and re.fullmatch(NAME, edited.name):
                campaigns.check_new(service, edited.name)
            said = await _store(request, service, edited)
            act = "dry-run" if action in ("start", "create") else action
            evaluation = await service.workers.call(
                evaluate, edited.yaml, service.settings, act, reliability
            )
            if action in ("start", "create") and is_tried:
                job = await campaigns.begin(service, evaluation.campaign, paused=action == "create")
                describe_action(request, "create", job.name)
                return RedirectResponse(f"/campaigns/{job.name}", 303)
        except (ElicitError, ProblemError) as error:
            text = error.detail if isinstance(error, ProblemError) else str(error)
            names = re.findall(r"^- name: (.+)$", edited.space_yaml, re.M)
            errors[place_of(text, sent, names)], status = sentence(error), status_of(error)
    if action in ("start", "create") and not errors:
        said = "This is the dry run of the campaign as it is now; start it below."
    more: dict[str, Any] = {"evaluation": evaluation, "said": said, "errors": errors}
    more["reliability"] = sent.get("reliability", "0.5")
    if not errors:
        return await _page(request, service, edited.yaml, **more)
    # The fields are those of the last texts that could be used, as they were filled in.
    more |= {"sent": sent, "yaml": sent.get("yaml", ""), "space_yaml": sent.get("space_yaml", "")}
    more["before"] = {key: sent.get(f"{key}_before", "") for key in ("yaml", "space_yaml")}
    campaign_text = more["before"]["yaml"] or edited.yaml
    space_text = more["before"]["space_yaml"] or None
    return await _page(request, service, campaign_text, status, space_text=space_text, **more)


async def _store(request: Request, service: Service, edited: Edit) -> str:
    """Store the uploaded space of a form; return what was done beside what was asked for.

    Raises:
        ProblemError: a campaign uses the space.
        InputError: it breaks a rule.
    """
    library = library_of(service.settings)
    if not edited.space:
        return ""
    path = library.yaml_path(edited.space)
    stored = await asyncio.to_thread(path.read_text, "utf-8")
    if edited.reading is not None:
        await spaces.check_unused(service, edited.space)
        table = next(file for file in path.parent.iterdir() if file.suffix in spaces.SUFFIXES)
        cells = service.settings.bounds.cells
        await service.workers.call(spaces.draft, table, edited.reading, cells)
        describe_action(request, f"draft the columns of {edited.space} anew", "")
        return "The table was read anew, and its columns are drafted anew."
    if normalized(edited.space_yaml) != normalized(stored):
        await spaces.check_unused(service, edited.space)
        await service.workers.call(library.replace, edited.space, edited.space_yaml)
        describe_action(request, f"edit the columns of {edited.space}", "")
    return ""


async def _allowed_examples(service: Service) -> dict[str, str]:
    """Return the text of the examples that this server allows, by name."""

    def allowed() -> Iterator[tuple[str, str]]:
        for name in files.available("examples", ".yaml"):
            text = files.find("examples", name, ".yaml").read_text("utf-8")
            with suppress(ElicitError):
                campaigns.validate_campaign(parse_yaml(text, name), service.settings)
                yield name, text

    if not service.examples:
        service.examples.update(await asyncio.to_thread(lambda: dict(allowed())))
    return service.examples


def _clone_of(run: Run) -> str:
    """Return a new campaign as YAML, with the settings and present experts of a run."""
    campaign = run.campaign
    settings = campaign.shareable()
    is_file = campaign.space.endswith(".yaml")
    settings["space"] = Path(campaign.space).stem if is_file else campaign.space
    for part in (settings, *settings["judges"]):
        unset = {key for key, value in part.items() if value is None} - {"api_key_env"}  # no key
        for key in unset | ({"price"} & set(part)):
            del part[key]
    experts = experts_by_judge(run.location, campaign)
    for judge in settings["judges"]:
        if judge["name"] in experts:
            judge["experts"] = experts[judge["name"]]
    for key in ("part_of", "repeat_of", "journal"):
        settings.pop(key, None)
    return to_yaml(settings | {"name": f"{campaign.name[:70]}-copy"})
