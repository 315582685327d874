"""``skiptrain bench``: how fast this machine runs the engine, and what limits it."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from skiptrain_plugin.cli.show import show_table


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--quick", is_flag=True, help="Fewer repeats, no 4096 nodes.")
def bench(as_json: bool, quick: bool) -> None:
    """Measure local steps, evaluation, averaging, start-up, memory and scaling, against plain ways and floors."""
    from skiptrain_plugin.bench.measure import measure

    result = measure(quick, lambda what: print(f"measuring: {what}", file=sys.stderr, flush=True))
    if as_json:
        click.echo(json.dumps(result, indent=2))
        return
    _show(result)


def _show(result: dict[str, Any]) -> None:
    step, evaluation, torch_kernels = result["local_step"], result["evaluation"], result["torch_kernels"]
    plain, native = step["plain_ms"], result["machine"]["kernels"] == "native"
    rows = [("local step, plain way", f"{plain:.2f} ms", "1.0", "default layout, DataLoader, one process a core")]
    for name in ("fp32", "bf16"):
        floor = step[f"floor_{name}_ms"]
        for title, ms in (("engine", step[f"{name}_ms"]), ("engine, torch kernels", torch_kernels[f"{name}_ms"])):
            limit = f"{100 * floor / ms:.0f} % of the floor's speed (torch's convolutions alone: {floor:.2f} ms)"
            rows.append((f"local step, {title} {name}", f"{ms:.2f} ms", f"{plain / ms:.2f}", limit))
    plain = evaluation["plain_s"]
    rows.append(("evaluation, plain loop", f"{plain:.2f} s", "1.0", "one image after the other in Python"))
    for name in ("fp32", "bf16"):
        s = evaluation[f"{name}_s"]
        limit = "the native blocks" if native else "torch's convolutions"
        rows.append((f"evaluation, engine {name}", f"{s:.3f} s", f"{plain / s:.1f}", limit))
        s = torch_kernels[f"{name}_s"]
        rows.append(
            (f"evaluation, engine, torch kernels {name}", f"{s:.3f} s", f"{plain / s:.1f}", "torch's convolutions")
        )
    mixing = result["mixing"]
    rows.append(
        (
            "averaging, 256 nodes",
            f"{mixing['rounds_per_s']:.1f} rounds/s",
            "–",
            f"{100 * mixing['of_bandwidth']:.0f} % of the memory bandwidth ({mixing['bandwidth_gb_s']:.1f} GB/s)",
        )
    )
    rows.append(("start-up, paper scale", f"{result['startup_s']:.1f} s", "–", "importing torch, reading the data"))
    for name, mb in result["peak_memory_mb"].items():
        rows.append((f"peak memory, {name}", f"{mb:.0f} MB", "–", "the models of all nodes"))
    per_node = result["round_ms_per_node"]
    first = next(iter(per_node.values()))
    for nodes, ms in per_node.items():
        rows.append((f"round at {nodes} nodes", f"{ms:.2f} ms a node", f"{first / ms:.2f}", "one local step a node"))
    machine = result["machine"]
    title = f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}, {machine['cpu_capability']},"
    title += f" kernels: {machine['kernels']}"
    show_table(title, ("what", "measured", "times as fast", "what limits it"), rows)
