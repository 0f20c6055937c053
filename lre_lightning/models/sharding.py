"""An LM over several processes, each of which has a part of every large weight: tensor parallelism.

A linear layer is split along its outputs or its inputs, and processes add up or gather what flows between layers, in
both directions (Shoeybi et al., 2019, Section 3, `f` and `g`). Hidden states between layers are whole and equal in all
processes of a group, which therefore have to run the same passes in the same order.

A plan says how each layer is split. Those of transformers are tried first, then one that knows the layers of MLPs by
name, then one that is right for every LM that calls its linear layers. A plan is taken if logits and gradients of a few
tokens are those of the LM before it was split.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, distributed, nn

from lre_lightning.errors import LREError, first_line
from lre_lightning.models.hooks import replace
from lre_lightning.models.parts import find_parts
from lre_lightning.models.precision import agrees, rounded_otherwise

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LOGGER = logging.getLogger("lre_lightning")

Style: TypeAlias = Literal["columns", "rows", "gathered", "scattered"]
"""A layer split along its outputs, which stay split, or inputs, which come split; or along outputs that are gathered,
or inputs that are whole."""

STYLES: dict[str, Style] = {
    "colwise": "columns",
    "rowwise": "rows",
    "colwise_gather_output": "gathered",
    "colwise_rep": "gathered",
    "rowwise_split_input": "scattered",
    "rowwise_rep": "scattered",
}
"""The styles of linear layers in transformers' plans."""

MLPS: dict[str, Style] = {
    "mlp.gate_proj": "columns",
    "mlp.up_proj": "columns",
    "mlp.down_proj": "rows",
    "mlp.c_fc": "columns",  # GPT-2
    "mlp.c_proj": "rows",
    "mlp.fc_in": "columns",  # GPT-J
    "mlp.fc_out": "rows",
    "fc1": "columns",  # OPT
    "fc2": "rows",
    "mlp.dense_h_to_4h": "columns",  # BLOOM, Falcon
    "mlp.dense_4h_to_h": "rows",
}
"""Layers of MLPs, by the end of their names: nothing but a pointwise function is between the two kinds."""


@dataclass(frozen=True, eq=False)
class Shards:
    """The processes that share one LM, as seen from one of them.

    Attributes:
        group: Their process group.
        member: The index of this one among them.
        members: Their number.
    """

    group: Any
    member: int
    members: int

    @classmethod
    def of(cls, members: int) -> Shards:
        """Divide the processes of a run into groups of so many consecutive ones; every process must call this.

        Raises:
            LREError: If they are not a multiple of it.
        """
        count = distributed.get_world_size() if distributed.is_initialized() else 1
        if count % members:
            raise LREError(
                f"tensor_parallel {members} needs {members} processes or a multiple of them, and there "
                f"{'is' if count == 1 else 'are'} {count}: --trainer.devices {members}"
            )
        group, _ = distributed.new_subgroups(members)
        return cls(group, distributed.get_rank(group), members)

    def close(self) -> None:
        """End the group, once the LM is no longer run; every member must call this."""
        distributed.destroy_process_group(self.group)

    @property
    def device(self) -> torch.device:
        """The device on which this process runs its part."""
        on_gpu = distributed.get_backend(self.group) == "nccl" or torch.cuda.is_initialized()
        return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    def least(self, number: float) -> float:
        """Return the least of the numbers of all members; a collective call, as are those below."""
        found = torch.tensor(number, dtype=torch.float64, device=self.device)
        distributed.all_reduce(found, distributed.ReduceOp.MIN, self.group)
        return float(found)

    def from_first(self, given: Any) -> Any:
        """Return what the first member gives, any object that can be pickled."""
        held = [given]
        distributed.broadcast_object_list(held, group=self.group, group_src=0, device=self.device)
        return held[0]

    def part(self, whole: Tensor, axis: int) -> Tensor:
        """Return this member's part of a tensor, which is no view of it."""
        size = whole.shape[axis] // self.members
        return whole.narrow(axis, self.member * size, size).clone()

    def sum(self, part: Tensor) -> Tensor:
        """Return the sum over members."""
        total = part.contiguous().clone()
        distributed.all_reduce(total, group=self.group)
        return total

    def joined(self, part: Tensor) -> Tensor:
        """Return the parts of all members, joined along the last axis."""
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.members)]
        distributed.all_gather(parts, part, group=self.group)
        return torch.cat(parts, -1)


class _Linear(torch.autograd.Function):
    """A linear map between what is whole in all members and what is split; its transpose is the other one of a pair.

    A tangent is mapped as the states are, and a gradient by the transpose, which has derivatives in turn.
    """

    transpose: type[_Linear]

    @staticmethod
    def map(shards: Shards, states: Tensor) -> Tensor:
        raise NotImplementedError

    @classmethod
    def forward(cls, ctx: Any, states: Tensor, shards: Shards) -> Tensor:
        ctx.shards = shards
        return cls.map(shards, states)

    @classmethod
    def backward(cls, ctx: Any, *gradients: Tensor) -> Any:
        return cls.transpose.apply(gradients[0], ctx.shards), None  # type: ignore[no-untyped-call]

    @classmethod
    def jvp(cls, ctx: Any, *tangents: Any) -> Tensor:
        return cls.map(ctx.shards, tangents[0])


class _Copy(_Linear):
    """The same whole states for every member, whose gradients are parts of a sum."""

    @staticmethod
    def map(shards: Shards, states: Tensor) -> Tensor:
        return states.view_as(states)


class _Sum(_Linear):
    """The sum over members."""

    @staticmethod
    def map(shards: Shards, states: Tensor) -> Tensor:
        return shards.sum(states)


class _Split(_Linear):
    """A member's part of the last axis."""

    @staticmethod
    def map(shards: Shards, states: Tensor) -> Tensor:
        return shards.part(states, -1)


class _Join(_Linear):
    """The parts of all members."""

    @staticmethod
    def map(shards: Shards, states: Tensor) -> Tensor:
        return shards.joined(states)


_Copy.transpose, _Sum.transpose, _Split.transpose, _Join.transpose = _Sum, _Copy, _Join, _Split

BEFORE: dict[Style, type[_Linear]] = {"columns": _Copy, "gathered": _Copy, "scattered": _Split}
AFTER: dict[Style, type[_Linear]] = {"rows": _Sum, "scattered": _Sum, "gathered": _Join}
HOOKS = "_lre_sharding_hooks"
"""Attribute of a split layer, with the handles of its hooks."""


def split_model(model: PreTrainedModel, members: int) -> Shards:
    """Split a model that every process has loaded on the CPU, and move this process's part to its device.

    Embeddings, the unembedding and everything else but linear layers stay whole.

    Raises:
        LREError: If the processes cannot be divided into groups of so many members, or the model cannot be split.
    """
    shards, name = Shards.of(members), type(model).__name__
    model.requires_grad_(False)
    blocks = find_parts(model).blocks
    right, rounded = shards.from_first([_attempt(model), _attempt(model, blocks)] if shards.member == 0 else None)
    if isinstance(right, str):
        shards.close()
        raise LREError(f"{name} cannot be split over {members} processes: it cannot be run on the CPU ({right})")
    total, layers = _bytes(model), _layers(model, members)
    whole = {path: (layer.weight, layer.bias) for path, layer in layers.items()}
    error = "none of its layers has a size that they divide"
    for plan in _plans(model, layers):
        for path, style in plan.items():
            _split(layers[path], *whole[path], style, shards)
        model.to(shards.device)  # type: ignore[arg-type]
        error = _difference(_attempt(model), right, rounded)
        if shards.least(not error):
            if shards.member == 0:
                held = 100 * _bytes(model) / total
                LOGGER.info("processes that share the LM: %d; each holds %.0f%% of its weights", members, held)
            return shards
    shards.close()
    raise LREError(
        f"{name} cannot be split over {members} processes: {error or 'another process has found a difference'}; leave "
        "tensor_parallel out or try another number, and for an LM larger than a device give one process a device_map"
    )


def _bytes(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def _attempt(model: PreTrainedModel, rounded: Sequence[nn.Module] = ()) -> tuple[Tensor, Tensor] | str:
    """Return logits of a few tokens, and a gradient of them with respect to the embeddings; or why it cannot be run.

    The hidden states of the modules in `rounded` are rounded otherwise.
    """
    roots: list[Tensor] = []

    def start_graph(hidden: Tensor) -> Tensor:
        roots.append(hidden.detach().requires_grad_(True))
        return roots[0].clone()

    embedding: Any = model.get_input_embeddings()
    ids = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 0]], device=embedding.weight.device)
    try:
        rounding = rounded_otherwise(rounded)
        with torch.inference_mode(False), torch.enable_grad(), replace(embedding, start_graph), rounding:
            logits: Tensor = model(input_ids=ids, use_cache=False).logits
            cotangent = torch.linspace(-1, 1, logits.shape[-1], dtype=logits.dtype, device=logits.device)
            (gradient,) = torch.autograd.grad(logits, roots[0], cotangent.expand_as(logits))
    except Exception as error:  # a model may fail in any way, here if a plan does not fit it
        return first_line(error)
    return logits.detach().cpu(), gradient.cpu()


def _difference(found: tuple[Tensor, Tensor] | str, *right: tuple[Tensor, Tensor]) -> str:
    """Say how a split model differs from the whole one, as it is and rounded otherwise; nothing if it does not."""
    if isinstance(found, str):
        return found
    for what, one, expected, rounded in zip(("logits", "gradients"), found, *right, strict=True):
        if not agrees(one, expected, (expected, rounded), expected.roll(1, 1)):  # of other positions
            error = float((one.double() - expected.double()).norm() / expected.double().norm())
            return f"the {what} of a few tokens are wrong by {error:.1%}"
    return ""


def _layers(model: PreTrainedModel, members: int) -> dict[str, Any]:
    """Return the linear layers that can be split, by their paths: their sizes divide, and no weight is tied."""
    from transformers.pytorch_utils import Conv1D

    owners = Counter(id(weight) for module in model.modules() for weight in module.parameters(recurse=False))
    return {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and module is not model.get_output_embeddings()
        and owners[id(module.weight)] == 1
        and not any(size % members for size in module.weight.shape)
    }


def _plans(model: PreTrainedModel, layers: Iterable[str]) -> Iterator[dict[str, Style]]:
    """Yield plans, the style of every layer by its path, in the order in which they are tried."""
    theirs: dict[str, str] = getattr(model, "_tp_plan", None) or {}
    own = {path: STYLES.get(theirs.get(re.sub(r"\.\d+(?=\.|$)", ".*", path), "")) for path in layers}
    by_name = {
        path: next((style for end, style in MLPS.items() if f".{path}".endswith(f".{end}")), None) for path in layers
    }
    for found in (own, by_name):
        if any(found.values()):
            yield {path: style or "gathered" for path, style in found.items()}
    if own:
        yield dict.fromkeys(own, "gathered")


def _split(layer: Any, weight: Tensor, bias: Tensor | None, style: Style, shards: Shards) -> None:
    """Give a linear layer this member's part of its weight, and hooks in place of those of an earlier plan."""
    outputs, transposed = style in ("columns", "gathered"), not isinstance(layer, nn.Linear)  # Conv1D is
    layer.weight = nn.Parameter(shards.part(weight, int(outputs == transposed)), requires_grad=False)
    if transposed:
        layer.nf = layer.weight.shape[1]
    if bias is not None:
        part = shards.part(bias, 0) if outputs else bias.clone() if shards.member == 0 else torch.zeros_like(bias)
        layer.bias = nn.Parameter(part, requires_grad=False)
    for handle in vars(layer).pop(HOOKS, ()):
        handle.remove()
    vars(layer)[HOOKS] = handles = []
    before: Any = BEFORE.get(style)
    if before is not None:
        handles.append(layer.register_forward_pre_hook(lambda _, args: (before.apply(args[0], shards), *args[1:])))
    after: Any = AFTER.get(style)
    if after is not None:
        handles.append(layer.register_forward_hook(lambda _, _args, output: after.apply(output, shards)))
