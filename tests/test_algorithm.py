"""Schedule, policies and randomness against the paper's arithmetic."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skiptrain_plugin.algorithm.policies import (
    DPSGD,
    AllReduce,
    Greedy,
    Policy,
    PolicySettings,
    SkipTrain,
    SkipTrainConstrained,
    policy_class,
    policy_names,
)
from skiptrain_plugin.algorithm.randomness import derived_seed, generator, uniforms
from skiptrain_plugin.algorithm.schedule import RoundKind, RoundSchedule, tuned_schedule
from skiptrain_plugin.errors import InputError

T, S = RoundKind.TRAINING, RoundKind.SYNCHRONIZATION


def make(kind: type[Policy], budgets, rounds=100, gammas=(4, 4), seed=1, uids=None):
    uids = np.arange(len(budgets)) if uids is None else np.array(uids)
    return kind(PolicySettings(uids, np.array(budgets, dtype=np.int64), RoundSchedule(*gammas), rounds, seed))


def decisions(policy: Policy) -> np.ndarray:
    return np.array([trains for _, trains in policy.replay()])


def test_schedule_counts_from_zero():
    assert [RoundSchedule(2, 3).kind(t) for t in range(7)] == [T, T, S, S, S, T, T]


@pytest.mark.parametrize(("gammas", "expected"), [((4, 4), 500), ((3, 3), 501), ((4, 2), 668), ((1, 4), 200)])
def test_training_rounds_of_the_paper(gammas, expected):
    assert RoundSchedule(*gammas).training_rounds(1000) == expected


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 60))
def test_training_rounds_is_the_count_of_kinds(training, synchronization, rounds):
    schedule = RoundSchedule(training, synchronization)
    assert schedule.training_rounds(rounds) == sum(schedule.kind(t) is T for t in range(rounds))


def test_nominal_training_rounds_is_not_rounded():
    assert RoundSchedule(4, 2).nominal_training_rounds(1000) == pytest.approx(666.6666667)


@pytest.mark.parametrize("gammas", [(0, 4), (-1, 4), (4, 0), (4, -2)])
def test_gamma_below_one_is_refused(gammas):
    with pytest.raises(InputError, match="must be at least 1"):
        RoundSchedule(*gammas)


def test_tuned_schedules():
    assert [tuned_schedule(d) for d in (2, 6, 7, 8, 9, 10, 31)] == [
        RoundSchedule(*g) for g in ((4, 4), (4, 4), (4, 4), (3, 3), (3, 3), (4, 2), (4, 2))
    ]


def test_dpsgd_and_allreduce_always_train():
    for kind in (DPSGD, AllReduce):
        assert decisions(make(kind, [0, 1, 5])).all()
    assert AllReduce.averages_globally
    assert not DPSGD.averages_globally


def test_greedy_trains_until_the_budget_is_gone():
    trained = decisions(make(Greedy, [0, 1, 3], rounds=5))
    assert trained.T.tolist() == [[False] * 5, [True] + [False] * 4, [True] * 3 + [False] * 2]


def test_skiptrain_ignores_budgets():
    trained = decisions(make(SkipTrain, [0, 9], rounds=6, gammas=(1, 2)))
    assert trained[:, 0].tolist() == trained[:, 1].tolist() == [True, False, False, True, False, False]


def test_probability_is_tau_over_t_train_at_most_one():
    policy = make(SkipTrainConstrained, [0, 25, 50, 80], rounds=100, gammas=(4, 4))
    assert policy.training_probability.tolist() == [0.0, 0.5, 1.0, 1.0]


def test_constrained_trains_only_in_training_rounds_and_within_budget():
    for seed in range(30):
        policy = make(SkipTrainConstrained, [0, 5, 20, 50], rounds=100, seed=seed)
        trained = decisions(policy)
        assert (trained.sum(0) <= [0, 5, 20, 50]).all()
        assert not trained[[policy.kind(t) is S for t in range(100)]].any()
        assert trained[:, 3].sum() == 50
        assert min(remaining.min() for remaining, _ in policy.replay()) >= 0


def test_frequency_of_participation_is_the_probability():
    policy = make(SkipTrainConstrained, [3, 6, 9], rounds=24, gammas=(1, 1))
    expected = np.array([3, 6, 9]) / 12
    first = [
        make(SkipTrainConstrained, [3, 6, 9], rounds=24, gammas=(1, 1), seed=seed).decide(0, policy.settings.budgets)
        for seed in range(4000)
    ]
    assert np.abs(np.mean(first, axis=0) - expected).max() < 4 * 0.5 / np.sqrt(4000)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 19), min_size=1, max_size=20, unique=True), st.integers(0, 2**40), st.randoms())
def test_participation_does_not_depend_on_how_it_is_asked(uids, seed, shuffled):
    budgets = np.full(20, 15)
    whole = decisions(make(SkipTrainConstrained, budgets, rounds=40, seed=seed))
    part = make(SkipTrainConstrained, budgets[uids], rounds=40, seed=seed, uids=uids)
    assert (decisions(part) == whole[:, uids]).all()
    rounds = list(range(40))
    shuffled.shuffle(rounds)
    ample = np.full(20, 40)
    everyone = make(SkipTrainConstrained, budgets, rounds=40, seed=seed)
    in_order = [everyone.decide(t, ample) for t in range(40)]
    assert all((everyone.decide(t, ample) == in_order[t]).all() for t in rounds)


def test_expected_and_maximal_rounds():
    policy = make(SkipTrainConstrained, [272, 681], rounds=1000, gammas=(3, 3))
    assert policy.expected_training_rounds().tolist() == [272, 501]
    assert policy.maximal_training_rounds().tolist() == [272, 501]
    assert make(Greedy, [3, 2000], rounds=100).maximal_training_rounds().tolist() == [3, 100]


def test_known_and_unknown_policies():
    assert set(policy_names()) >= {"dpsgd", "allreduce", "greedy", "skiptrain", "skiptrain_constrained"}
    assert policy_class("greedy") is Greedy
    with pytest.raises(InputError, match="unknown algorithm 'skiptrian'.*did you mean 'skiptrain'"):
        policy_class("skiptrian")


def test_third_party_policy_by_entry_point(tmp_path, monkeypatch):
    (tmp_path / "third_party.py").write_text(
        "from skiptrain_plugin.algorithm.policies import SkipTrain\n"
        "class EveryThird(SkipTrain):\n"
        "    name = 'every_third'\n"
        "    option_names = frozenset({'offset'})\n"
        "    def decide(self, round, remaining):\n"
        "        return (self.settings.uids + round + int(self.settings.options['offset'])) % 3 == 0\n"
        "not_a_policy = 3\n"
    )
    info = tmp_path / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[skiptrain_plugin.policies]\nevery_third = third_party:EveryThird\nbroken = third_party:not_a_policy\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from skiptrain_plugin.experiment.experiment import load

    assert "every_third" in policy_names()
    experiment = load(dataset="synthetic", settings=["NODE.algorithm=every_third", "NODE.offset=1"])
    assert experiment.policy().decide(1, np.zeros(32))[:4].tolist() == [False, True, False, False]
    with pytest.raises(InputError, match="is not a Policy"):
        policy_class("broken")


def test_random_streams_are_distinct_and_repeatable():
    seen = {
        derived_seed(seed, purpose, uid, round)
        for seed in (0, 1)
        for purpose in ("a", "b")
        for uid in (0, 1, 300)
        for round in (0, 1, 300)
    }
    assert len(seen) == 36
    assert generator(5, "a", 2, 3).random() == generator(5, "a", 2, 3).random()
    everyone = uniforms(7, "participation", np.arange(50), 4)
    assert (uniforms(7, "participation", np.array([49, 3]), 4) == everyone[[49, 3]]).all()
    assert len(uniforms(7, "participation", np.array([], dtype=np.int64), 4)) == 0
