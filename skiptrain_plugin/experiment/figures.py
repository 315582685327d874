"""The templates of the paper's figures and tables: what their FIGURE section varies, as a list of experiments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from skiptrain_plugin.algorithm.policies import policy_class
from skiptrain_plugin.errors import InputError, unknown
from skiptrain_plugin.experiment.catalogue import SCALES, dataset_facts, dataset_of_class, scale_values
from skiptrain_plugin.experiment.experiment import Experiment, from_values
from skiptrain_plugin.experiment.ini import Values, apply_settings, read_ini
from skiptrain_plugin.resources import template

TEMPLATES = {
    ("figure", 1): "figure1_allreduce.ini",
    ("figure", 2): "figure2_rounds.ini",
    ("figure", 3): "figure3_gamma_grid.ini",
    ("figure", 4): "figure4_train_sync.ini",
    ("figure", 5): "figure5_skiptrain_vs_dpsgd.ini",
    ("figure", 6): "figure6_constrained.ini",
    ("figure", 7): "figure7_classes.ini",
    ("table", 1): "table1_hyperparameters.ini",
    ("table", 2): "table2_energy_traces.ini",
    ("table", 3): "table3_unconstrained.ini",
    ("table", 4): "table4_constrained.ini",
}
WITHOUT_TRAINING = {("figure", 2), ("figure", 7), ("table", 1), ("table", 2)}
"""What is drawn from policies, data, configuration and traces."""

LAST_CYCLE = "last_cycle"
KEYS = (
    "datasets",
    "algorithms",
    "degrees",
    "training_rounds",
    "synching_rounds",
    "evaluate_every",
    "evaluate_baselines_every",
    "nodes_shown",
    "rounds_shown",
    *SCALES,
)
"""The keys of a FIGURE section; a scale's key lists the settings that it puts in for this figure."""

_NEEDED = {
    ("figure", 1): ("dpsgd",),
    ("figure", 3): ("skiptrain",),
    ("figure", 4): ("skiptrain",),
    ("figure", 5): ("skiptrain", "dpsgd"),
    ("figure", 6): ("skiptrain_constrained", "dpsgd"),
    ("table", 3): ("skiptrain", "dpsgd"),
    ("table", 4): ("skiptrain_constrained", "dpsgd"),
}
"""Without runs of these a figure cannot be drawn."""

_FROM_DATASET = ("DATASET", "OPTIMIZER_PARAMS", "TRAIN_PARAMS", "NODE")
_VARIED = {
    "RUN.degree": "degrees",
    "NODE.algorithm": "algorithms",
    "NODE.consecutive_training_rounds": "training_rounds",
    "NODE.consecutive_synching_rounds": "synching_rounds",
}
_SETTING = re.compile(r"\s*(?:^|[\n,;])\s*(?=[A-Za-z_]+\.\w+\s*=)")


@dataclass(frozen=True)
class Variant:
    """One run of a figure."""

    name: str
    """Its folder inside the figure's, for example ``degree-6/skiptrain``."""
    experiment: Experiment


@dataclass(frozen=True)
class FigurePlan:
    """A figure or table for one dataset and scale."""

    dataset: str
    scale: str
    variants: tuple[Variant, ...]
    nodes_shown: int
    rounds_shown: int
    """Of figures 2 and 7."""


@dataclass(frozen=True)
class FigureTemplate:
    """A template with its FIGURE section."""

    kind: str
    """``figure`` or ``table``."""
    number: int
    path: Path
    values: Values
    """The INI without FIGURE."""
    figure: Mapping[str, str]

    @property
    def datasets(self) -> list[str]:
        """The datasets the figure is for; the first is the default."""
        names = _words(self.figure.get("datasets", "")) or [self._own_dataset]
        return [dataset_facts(name, self._place("datasets")).name for name in names]

    @property
    def _own_dataset(self) -> str:
        return dataset_of_class(self.values.get("DATASET", {}).get("dataset_class", ""), f"{self.path}, [DATASET]").name

    def plan(self, dataset: str, scale: str, settings: Sequence[str] = ()) -> FigurePlan:
        """The runs that the figure needs for ``dataset`` at ``scale``; ``settings`` as in ``--set``."""
        if scale not in SCALES:
            raise unknown("scale", scale, SCALES)
        if dataset not in self.datasets:
            raise InputError(
                f"--dataset {dataset}: {self.kind} {self.number} is for {', '.join(self.datasets)} ([FIGURE] datasets"
                f" in {self.path.name})"
            )
        own = [setting for setting in settings if not _is_figure(setting)]
        changes = [*_settings(self.figure.get(scale, "")), *(s for s in settings if _is_figure(s))]
        figure = _figure_section(self.figure, [s for s in changes if _is_figure(s)], str(self.path))
        changed = replace(self, figure=figure)
        for setting in own:
            name = _name(setting)
            if name in _VARIED:
                raise InputError(f"--set {setting}: the figure varies this; use --set FIGURE.{_VARIED[name]}=...")
        at_scale = [*_flat(scale_values(scale, dataset)), *(s for s in changes if not _is_figure(s))]
        values = apply_settings(self._base(dataset), at_scale)
        variants = tuple(changed._variants(values, own))
        changed._check(variants)
        return FigurePlan(
            dataset, scale, variants, changed._number("nodes_shown", 4), changed._number("rounds_shown", 16)
        )

    def _check(self, variants: Sequence[Variant]) -> None:
        """Refuses before anything runs what could not be drawn afterwards."""
        experiments = [variant.experiment for variant in variants]
        there = {experiment.node.algorithm for experiment in experiments}
        for algorithm in _NEEDED.get((self.kind, self.number), ()):
            if algorithm not in there:
                raise InputError(f"{self._place('algorithms')}: {self.kind} {self.number} needs {algorithm}")
        if (self.kind, self.number) == ("figure", 3) and not all(e.run.validate_models for e in experiments):
            raise InputError(f"{self.path}, [RUN] validate: figure 3 needs validation accuracies; allowed: True")
        if (self.kind, self.number) == ("figure", 4) and not any(e.test_after < e.schedule.period for e in experiments):
            raise InputError(f"{self._place('evaluate_every')}: figure 4 needs evaluations inside a cycle")

    def _base(self, dataset: str) -> Values:
        """The template's values, with the dataset's own sections where it is another than the template's."""
        if dataset == self._own_dataset:
            return self.values
        theirs = read_ini(template(dataset_facts(dataset).template))
        values = {**self.values, **{name: theirs.get(name, {}) for name in _FROM_DATASET}}
        values["RUN"] = {**self.values.get("RUN", {}), "rounds": theirs.get("RUN", {}).get("rounds", "")}
        return values

    def _variants(self, values: Values, settings: Sequence[str]) -> Iterator[Variant]:
        run, node = values.get("RUN", {}), values.get("NODE", {})
        degrees = self._numbers("degrees") or [int(run.get("degree") or 6)]
        algorithms = _words(self.figure.get("algorithms", "")) or [node.get("algorithm") or "skiptrain"]
        for name in algorithms:
            policy_class(name, self._place("algorithms"))
        for degree in degrees:
            for algorithm in algorithms:
                for gammas in self._grid(algorithm):
                    chosen = [f"RUN.degree={degree}", f"NODE.algorithm={algorithm}", *self._cadence(algorithm)]
                    suffix = ""
                    if gammas is not None:
                        chosen.append(f"NODE.consecutive_training_rounds={gammas[0]}")
                        chosen.append(f"NODE.consecutive_synching_rounds={gammas[1]}")
                        suffix = f"-{gammas[0]}-{gammas[1]}"
                    changed = apply_settings(values, [*chosen, *settings])
                    folders = [self.path.parent, Path.cwd()]
                    experiment = from_values(changed, str(self.path), folders)
                    if self.figure.get("evaluate_every") == LAST_CYCLE and "RUN.test_after" not in map(_name, settings):
                        experiment = _evaluated_after_last_cycle(experiment)
                    yield Variant(f"degree-{degree}/{algorithm}{suffix}", experiment)

    def _grid(self, algorithm: str) -> list[tuple[int, int] | None]:
        training, synching = self._numbers("training_rounds"), self._numbers("synching_rounds")
        if not algorithm.startswith("skiptrain") or not (training or synching):
            return [None]
        if not (training and synching):
            raise InputError(f"{self._place('training_rounds')}: needs synching_rounds too, and the other way round")
        return [(t, s) for t in training for s in synching]

    def _cadence(self, algorithm: str) -> list[str]:
        """How often the models are evaluated, as settings; by default every Γ_train + Γ_sync rounds."""
        key = "evaluate_every"
        if not algorithm.startswith("skiptrain") and self.figure.get("evaluate_baselines_every"):
            key = "evaluate_baselines_every"
        if self.figure.get(key, "") in ("", LAST_CYCLE):
            return []
        return [f"RUN.test_after={self._number(key, 1)}"]

    def _place(self, key: str) -> str:
        return f"{self.path}, [FIGURE] {key}"

    def _numbers(self, key: str) -> list[int]:
        words = _words(self.figure.get(key, ""))
        if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
            raise InputError(f"{self._place(key)}: expected whole numbers above 0, not '{self.figure[key][:60]}'")
        return [int(word) for word in words]

    def _number(self, key: str, default: int) -> int:
        numbers = self._numbers(key)
        if len(numbers) > 1:
            raise InputError(f"{self._place(key)}: expected one number, not '{self.figure[key][:60]}'")
        return numbers[0] if numbers else default


def read_template(kind: str, number: int, config: Path | None = None) -> FigureTemplate:
    """The template of figure or table ``number``: the project's, or ``config`` in its place."""
    if (kind, number) not in TEMPLATES:
        known = sorted(n for k, n in TEMPLATES if k == kind)
        raise InputError(f"there is no {kind} {number}; allowed: {', '.join(map(str, known))}")
    path = config or template(TEMPLATES[kind, number])
    values = read_ini(path)
    if "FIGURE" not in values:
        raise InputError(
            f"{path} has no [FIGURE] section; {template(TEMPLATES[kind, number]).name} is one to start from"
        )
    return FigureTemplate(kind, number, path, values, _figure_section(values.pop("FIGURE", {}), (), str(path)))


def _figure_section(section: Mapping[str, str], changes: Sequence[str], where: str) -> dict[str, str]:
    merged = dict(section)
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise InputError(f"--set {change}: expected FIGURE.key=value, for example FIGURE.degrees=6,8,10")
        merged[key.partition(".")[2].strip().lower()] = value.strip()
    for key in merged:
        if key not in KEYS:
            raise unknown("key in [FIGURE]", key, KEYS, where)
    return merged


def _evaluated_after_last_cycle(experiment: Experiment) -> Experiment:
    """Evaluated after the last whole cycle of Γ_train + Γ_sync rounds (and, as always, after the last round)."""
    period = experiment.schedule.period
    last = max(1, experiment.rounds // period) * period
    return replace(experiment, run=experiment.run.model_copy(update={"test_after": last}))


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[\s,]+", text) if word]


def _settings(text: str) -> list[str]:
    """SECTION.key=value settings, one a line or separated by commas; a value may hold commas itself."""
    return [part.strip().rstrip(",;").strip() for part in _SETTING.split(text) if part.strip()]


def _name(setting: str) -> str:
    section, _, key = setting.partition("=")[0].partition(".")
    return f"{section.strip().upper()}.{key.strip().lower()}"


def _is_figure(setting: str) -> bool:
    return _name(setting).startswith("FIGURE.")


def _flat(values: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [f"{section}.{key}={value}" for section, keys in values.items() for key, value in keys.items()]
