"""Where a model's tensors are in its files: transformers makes some of several, as it does those of experts."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from services.trainer_agent.training.slices import Shapes, Slice, index_of, overlap


@dataclass(frozen=True)
class Place:
    """A tensor of a file, which is a block of a model's tensor or all of it."""

    path: Path
    tensor: str
    """Name of the tensor in the file."""
    block: Slice
    """Part of the model's tensor that it is."""


Places = Mapping[str, tuple[Place, ...]]
"""Places of each tensor of a causal language model, by its name there."""


class OtherForm(Exception):
    """A tensor of the model is neither one of the files nor a block from each of several."""


def places_in(model: Any, files: Mapping[str, Path]) -> Places:
    """Return the places of the tensors that the files have. The model remembers which conversions they needed, as
    one that transformers has loaded. Raises OtherForm."""
    conversions = get_model_conversion_mapping(model, add_legacy=False)
    converter_of = {
        pattern: each
        for each in conversions
        if isinstance(each, WeightConverter)
        for pattern in each.source_patterns
    }
    shapes, places = _shapes(files), {}
    for name, sources in _sources(model, files, conversions).items():
        blocks = dict(_blocks(name, sources, converter_of, shapes))
        places[name] = tuple(Place(files[tensor], tensor, block) for tensor, block in blocks.items())
    model._weight_conversions = [each for each in conversions if each.was_used()]  # noqa: SLF001 it has no public name
    return places


def shape_of(places: tuple[Place, ...]) -> tuple[int, ...]:
    """Return the shape of the tensor that the blocks make up."""
    ends = (
        tuple(o + n for o, n in zip(each.block.offsets, each.block.shape, strict=True)) for each in places
    )
    return tuple(map(max, zip(*ends, strict=True)))


def read_block(here: Slice, places: tuple[Place, ...], into: Tensor) -> None:
    """Read a block of a model's tensor: of each file only what is in it."""
    by_file: defaultdict[Path, list[Place]] = defaultdict(list)
    for place in places:
        by_file[place.path].append(place)
    for path, of_file in by_file.items():
        # One file at a time: what was read of it is part of the process as long as it is open.
        with safe_open(path, framework="pt") as file:
            for place in of_file:
                if (common := overlap(here, place.block)) is not None:
                    stored = file.get_slice(place.tensor)
                    index = index_of(common, place.block)[-len(stored.get_shape()) :]
                    into[index_of(common, here)] = stored[index]


def _sources(
    model: Any, files: Mapping[str, Path], conversions: list[Any]
) -> Mapping[str, Mapping[str, list[str]]]:
    """Return which tensors of the files belong to each of the model's, by the converter's pattern that each has."""
    renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
    converters = [each for each in conversions if isinstance(each, WeightConverter)]
    state, prefix = model.state_dict(), model.base_model_prefix
    sources: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for tensor in sorted(files, key=dot_natural_key):
        name, pattern = rename_source_key(tensor, renamings, converters, prefix, state)
        if name not in state and tensor in state:
            name, pattern = tensor, None
        if name in state:
            sources[name][pattern or ""].append(tensor)
    return sources


def _blocks(
    name: str,
    sources: Mapping[str, list[str]],
    converter_of: Mapping[str, WeightConverter],
    shapes: Shapes,
) -> Iterator[tuple[str, Slice]]:
    if "" in sources:
        if len(sources) > 1 or len(sources[""]) > 1:
            raise OtherForm(name)
        [tensor] = sources[""]
        yield tensor, Slice(tensor=name, offsets=(0,) * len(shapes[tensor]), shape=shapes[tensor])
        return
    converter = converter_of[next(iter(sources))]
    if not _joins_experts(converter):
        raise OtherForm(name)
    kinds = [sources.get(pattern, []) for pattern in converter.source_patterns]
    if len(set(map(len, kinds))) > 1 or any(len({shapes[each] for each in kind}) != 1 for kind in kinds):
        raise OtherForm(name)
    start = 0
    for of_experts in kinds:
        rows, *others = shapes[of_experts[0]]
        for expert, tensor in enumerate(of_experts):
            offsets = expert, start, *(0 for _ in others)
            yield tensor, Slice(tensor=name, offsets=offsets, shape=(1, rows, *others))
        start += rows


def _joins_experts(converter: WeightConverter) -> bool:
    """Return whether it does no more than to stack the matrices of all experts, of several kinds one behind the
    other."""
    match converter.operations:
        case [MergeModulelist(dim=0)]:
            return len(converter.source_patterns) == 1
        case [MergeModulelist(dim=0), Concatenate(dim=1)]:
            return True
    return False


def _shapes(files: Mapping[str, Path]) -> Shapes:
    opened: dict[Path, Any] = {path: safe_open(path, framework="pt") for path in set(files.values())}
    return {tensor: tuple(opened[path].get_slice(tensor).get_shape()) for tensor, path in files.items()}
