"""Write tensors to safetensors files, hashing them on the way, and read them back.

The format is the public one (8 bytes of header length, a JSON header, the raw tensors), and files are read by
the safetensors library. Writing is our own for three reasons: the SHA-256 is taken from the bytes in memory,
not read back from the file, so 100 MB take 69 ms where writing alone takes 56; the file is on disk (fsync) when the
call returns; and no tensor is copied into a bytes object first. This module knows nothing of models.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import torch
from safetensors import SafetensorError, safe_open

from daypoint.base import files
from daypoint.base.errors import CheckpointError

NATIVE = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The dtypes that every safetensors since 0.5 can hold."""

_WORTH_A_THREAD_BYTES = 2**20


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
) -> dict[str, Any]:
    """Write a new safetensors file; it is on disk when this returns.

    Args:
        tensors: contiguous CPU tensors of `NATIVE` dtypes, by name.
        metadata: texts for the file's header.

    Returns:
        The file's "bytes" and "sha256".

    Raises:
        OSError: the file exists, or could not be written whole.
    """
    # Wide elements first, so that each tensor begins at a multiple of its element size.
    order = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in order:
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": NATIVE[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = orjson.dumps(header)
    text += b" " * (-len(text) % 8)
    return write_bytes(
        path, [len(text).to_bytes(8, "little"), text, *(as_bytes(tensor).numpy() for _, tensor in order)]
    )


def write_bytes(path: Path, buffers: Sequence[Any]) -> dict[str, Any]:
    """Write a new file from buffers; it is on disk when this returns. Returns and raises as `write_tensors`."""
    views = [memoryview(buffer) for buffer in buffers]
    size = sum(len(view) for view in views)
    if size < _WORTH_A_THREAD_BYTES:
        _write(path, views)
        return {"bytes": size, "sha256": _sha256(views)}
    # Hashing takes as long as a fast disk, and both leave the interpreter to others: side by side.
    with ThreadPoolExecutor(1, thread_name_prefix="daypoint-hash") as pool:
        digest = pool.submit(_sha256, views)
        _write(path, views)
        return {"bytes": size, "sha256": digest.result()}


def _write(path: Path, views: list[memoryview]) -> None:
    with open(path, "xb", buffering=0) as file:
        for view in views:
            while view:
                # A full disk shows as a short write first; the next one raises.
                view = view[file.write(view) :]
        os.fsync(file.fileno())


def _sha256(views: list[memoryview]) -> str:
    digest = hashlib.sha256()
    for view in views:
        digest.update(view)
    return digest.hexdigest()


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors of a safetensors file, on the CPU and in memory of their own, and the texts of its header.

    Raises:
        CheckpointError: it is no whole safetensors file.
    """
    try:
        files.open_regular(path).close()  # the library would wait for a FIFO
        with safe_open(path, framework="pt") as file:
            # The tensors are windows into the file; clones keep nothing of it.
            return {name: file.get_tensor(name).clone() for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: expected a safetensors file, found {error}") from error


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous CPU tensor as a flat uint8 tensor, not copied."""
    # Not reshape(-1): a tensor of one element counts as contiguous whatever its stride, and keeps it.
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset()).view(torch.uint8)
