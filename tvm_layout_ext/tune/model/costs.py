"""What a candidate costs, by all that is known of it without a GPU; none of it is a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import tvm

from ...analysis.kernel_facts import KernelFacts
from ...gpu.hardware import SECTOR_BYTES
from ...gpu.measured import H200
from ...gpu.warpgroups import WARPGROUP_RATE
from ...ir.annotations import WARPGROUP
from ...ir.queries import blocks_in
from ...simulate.report import Report
from ...simulation import simulate
from ...target import cuda_target
from ..space.knobs import Config
from ..space.operator import Shape
from ..space.task import Task
from .cost import Counters, modelled_terms
from .features import features, kernels_of, traffic
from .latency import chain, latency

#: Blocks that are run for a candidate's counters; all but the edge blocks of a grid do the same.
GRID_SAMPLE = 8
#: Longer parallel dimensions are cut for counting, to a multiple of every tile and the same
#: remainder: blocks further out do the same, and arrays of gigabytes take seconds to set up.
COUNTED_EXTENT = 2048
#: A sum of more turns is counted at two lengths and goes on as between them: the simulated GPU
#: takes some 10 us a turn, so that one product of 1x65,537 took two minutes.
_MOST_TURNS = 1 << 20


@dataclass(frozen=True)
class Costs:
    """Figures of one candidate, each worked out when it is first asked for.

    ``features`` and ``seconds`` are in closed form and take some 30 ms; ``report`` and what is made
    of it run a sample of the blocks on the simulated GPU, which takes seconds.
    """

    task: Task
    config: Config
    module: tvm.IRModule

    @property
    def kernels(self) -> list[KernelFacts]:
        """Facts of its kernels, from which all of this starts."""
        return kernels_of(self.module)

    @property
    def features(self) -> dict[str, float]:
        """What boosted trees see of it."""
        return features(self.task, self.config, self.module)

    @property
    def seconds(self) -> float:
        """Modelled latency on an H200; infinite if no loop is bound to blocks."""
        return latency(self.task, self.kernels)

    @cached_property
    def report(self) -> Report:
        """A sample of its blocks on the simulated GPU, with long parallel dimensions cut.

        So is the longest other dimension, if a thread makes more than 2**20 accesses.
        """
        return self._run(self._counted(1))

    @cached_property
    def _long(self) -> int | None:
        """Which dimension is cut beside the parallel ones, if one is."""
        turns = max((kernel.turns for kernel in self.kernels), default=0)
        operator, shape = self.task.operator, self.task.shape
        kept = [n for n, dim in enumerate(operator.dims) if dim not in operator.parallel]
        longest = max(kept, key=shape.__getitem__, default=None)
        is_long = longest is not None and shape[longest] > 4 * COUNTED_EXTENT
        return longest if turns > _MOST_TURNS and is_long else None

    def _counted(self, stretches: int) -> Shape:
        """The shape that is counted, with so many stretches of what is long."""
        shape = list(self.task.sub_shape(COUNTED_EXTENT, self.task.operator.parallel))
        if self._long is not None:
            rest = shape[self._long] % COUNTED_EXTENT
            shape[self._long] = stretches * COUNTED_EXTENT + rest
        return tuple(shape)

    def _run(self, shape: Shape) -> Report:
        task = self.task
        return simulate(
            task.module(self.config, shape),
            *counted_inputs(task, shape),
            target=cuda_target(task.architecture.name),
            grid_sample=GRID_SAMPLE,
            progress=False,
        )

    @property
    def known(self) -> dict[str, int]:
        """What :class:`Counters` has beside counts, of the kernel that moves the most."""
        task, kernels = self.task, self.kernels
        if not kernels:
            return {}
        heaviest = max(kernels, key=lambda kernel: kernel.grid * traffic(kernel))
        moved = task.operator.traffic(task.shape, task.dtype) // SECTOR_BYTES
        if self._by_warpgroups:
            # Steps of a kernel of warpgroups wait for none, and its copies are no requests.
            flops = task.operator.flops(task.shape)
            halves = round(flops * H200.tensor / WARPGROUP_RATE)
            return {
                "blocks": heaviest.grid,
                "memory": moved,
                "resident": 1,
                "products": flops,
                "halves": halves,
            }
        return {
            "blocks": heaviest.grid,
            "torn": round(sum(kernel.grid * kernel.torn for kernel in kernels)),
            "memory": moved,
            "resident": heaviest.blocks_per_sm(task.architecture),
            "steps": heaviest.steps,
            "products": sum(kernel.grid * kernel.product_flops for kernel in kernels),
            "chain": round(chain(heaviest)),
            "halves": round(sum(kernel.grid * kernel.half_flops for kernel in kernels)),
        }

    @property
    def _by_warpgroups(self) -> bool:
        functions = [one for _, one in self.module.functions_items()]
        return any(WARPGROUP in b.annotations for one in functions for b in blocks_in(one.body))

    @cached_property
    def counters(self) -> Counters:
        """What the simulated GPU counts, for whole grids."""
        grids = [kernel.grid for kernel in self.kernels]
        counted = scale_up(self.report, grids)
        if self._long is not None:
            more = asdict(scale_up(self._run(self._counted(2)), grids))
            times = self.task.shape[self._long] // COUNTED_EXTENT - 1
            whole = {name: n + times * (more[name] - n) for name, n in asdict(counted).items()}
            counted = Counters(**whole)
        return replace(counted, **self.known)

    @property
    def model(self) -> dict[str, Any]:
        """Counters and cost as a record has them."""
        terms = modelled_terms(self.counters, self.task.operator.flops(self.task.shape))
        return self.counters.to_json() | {"cost": round(terms.cycles, 1)}


def costs(task: Task, config: Config, module: tvm.IRModule | None = None) -> Costs:
    """What a candidate costs; ``module`` is what it was scheduled to, if that is known."""
    return Costs(task, config, task.module(config) if module is None else module)


def counted_inputs(task: Task, shape: Shape) -> list[np.ndarray]:
    """Arrays of zeros to count a kernel with: no operator's addresses depend on values."""
    arguments = task.operator.compute(shape, task.dtype)[:-1]
    return [np.zeros([int(n) for n in one.shape], str(one.dtype)) for one in arguments]


def scale_up(report: Report, blocks: Sequence[int]) -> Counters:
    """Counters of whole grids, of so many ``blocks`` a kernel, from those of a sample."""
    kernels = list(dict.fromkeys(launch.kernel for launch in report.launches))
    ran = {name: [one for one in report.launches if one.kernel == name] for name in kernels}
    if len(blocks) != len(kernels):
        # Such as one that only the host's loop, or nothing that is scheduled, shows.
        blocks = [sum(one.blocks for one in ran[name]) for name in kernels]
    scale = {
        name: whole / max(1, sum(one.sampled for one in ran[name]))
        for name, whole in zip(kernels, blocks, strict=True)
    }
    world = [site for site in report.accesses if site.scope == "global"]
    shared = [site for site in report.accesses if site.scope.startswith("shared")]

    def total(group: list[Any], name: str) -> int:
        return round(sum(getattr(site, name) * scale.get(site.kernel, 0) for site in group))

    return Counters(
        blocks=sum(blocks),
        sampled=report.blocks[0],
        requests=total(world, "requests"),
        sectors=total(world, "sectors"),
        ideal_sectors=total(world, "ideal_sectors"),
        wavefronts=total(shared, "wavefronts"),
        bank_conflicts=total(shared, "bank_conflicts"),
        barriers=round(sum(one.barriers * scale[one.kernel] for one in report.launches)),
    )
