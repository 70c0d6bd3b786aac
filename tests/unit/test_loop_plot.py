"""The plot of rewards: what is drawn where, in bounded memory, whatever the rewards are."""

from rlm_host.faces.loop_plot import POINTS, LiveReward, RewardPlot


def generation(reward, action: str = "reject") -> dict:
    return {"reward": reward, "action": action}


def plot_of(*told: dict) -> RewardPlot:
    plot, live = RewardPlot(), LiveReward()
    for one in told:
        plot.add(one, live.after(one))
    return plot


def test_dots_are_rewards_full_ones_accepts_and_the_line_is_the_best() -> None:
    plot = plot_of(
        generation(0.0, "accept"), generation(1.0, "accept"), generation(0.0), generation(0.5)
    )
    assert plot.lines(40, 3) == ["1┤ ●──", " │   •", "0┤● •"]
    assert plot.lines(40, 3, ascii_only=True) == ["1+ *--", " |   .", "0+* ."]


def test_a_rollback_takes_the_line_down() -> None:
    plot = plot_of(
        generation(0, "accept"), generation(4, "accept"), generation(2, "rollback"), generation(2)
    )
    assert plot.lines(40, 3) == ["4┤ ●", " │  ••", "0┤● ──"]


def test_what_was_not_measured_is_not_drawn() -> None:
    assert plot_of(generation("nan"), generation(None)).lines(40, 4) == []
    assert RewardPlot().lines(40, 4) == []
    assert plot_of(generation("inf"), generation(1.0)).lines(40, 2) == ["1┤ •", " │"]


def test_no_room_draws_nothing_and_little_room_the_highest() -> None:
    plot = plot_of(*(generation(float(n % 7)) for n in range(100)))
    assert plot.lines(2, 4) == plot.lines(40, 1) == plot.lines(0, 4) == []
    for width in (3, 4, 10, 33):
        assert max(map(len, plot.lines(width, 5))) <= width


def test_a_long_run_is_kept_in_few_columns_and_its_peak_is_not_lost() -> None:
    plot = RewardPlot()
    for n in range(50_000):
        plot.add(generation(9.0 if n == 31_337 else 1.0), None)
    assert len(plot) == 50_000
    assert len(plot._columns) < 2 * POINTS
    top = plot.lines(60, 4)[0]
    assert top.count("•") == 1
    assert 31_337 / 50_000 - 0.1 < top.index("•") / max(map(len, plot.lines(60, 4))) < 0.73
