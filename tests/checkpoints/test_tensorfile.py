"""Tensor files: what we write, the safetensors library reads, and the hash is that of the file."""

from __future__ import annotations

import hashlib
import os
import resource

import pytest
import torch
from safetensors.torch import load_file, save_file

from daypoint.base.errors import CheckpointError
from daypoint.checkpoints.tensorfile import NATIVE, read_tensors, write_bytes, write_tensors

TENSORS = {
    "matrix": torch.arange(6.0).reshape(2, 3),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "double": torch.rand(3, dtype=torch.float64),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
    "flags": torch.tensor([True, False, True]),
    '名前\n"quoted"': torch.ones(1, dtype=torch.bfloat16),
}


def test_the_library_reads_what_we_write(tmp_path):
    path = tmp_path / "x.safetensors"
    write_tensors(path, TENSORS, {"format": "pt"})
    loaded = load_file(path)
    assert loaded.keys() == TENSORS.keys()
    assert all(
        torch.equal(loaded[name], tensor) and loaded[name].dtype == tensor.dtype
        for name, tensor in TENSORS.items()
    )


def test_we_read_what_the_library_writes(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file(TENSORS, path, {"format": "pt"})
    tensors, metadata = read_tensors(path)
    assert metadata == {"format": "pt"}
    assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())


@pytest.mark.parametrize("dtype", NATIVE, ids=str)
def test_every_native_dtype_is_known_to_the_library(tmp_path, dtype):
    tensor = torch.arange(48, dtype=torch.uint8).view(torch.uint8 if dtype is torch.bool else dtype)
    tensor = (tensor % 2).to(torch.bool) if dtype is torch.bool else tensor
    write_tensors(tmp_path / "x", {"t": tensor}, {})
    loaded = load_file(tmp_path / "x")["t"]
    assert loaded.dtype == dtype
    assert loaded.view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()


@pytest.mark.parametrize("elements", [0, 10, 1_000_000])
def test_size_and_hash_are_those_of_the_file(tmp_path, elements):
    path = tmp_path / "x"
    facts = write_tensors(path, {"t": torch.rand(elements), "u": torch.rand(3)}, {"a": "b"})
    content = path.read_bytes()
    assert facts == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def test_every_tensor_begins_at_a_multiple_of_its_element_size(tmp_path):
    write_tensors(tmp_path / "x", TENSORS, {})
    header_bytes = int.from_bytes((tmp_path / "x").read_bytes()[:8], "little")
    assert header_bytes % 8 == 0


def test_no_tensors_at_all_are_a_file_too(tmp_path):
    write_tensors(tmp_path / "x", {}, {})
    assert read_tensors(tmp_path / "x") == ({}, {})


def test_an_existing_file_is_never_overwritten(tmp_path):
    (tmp_path / "x").write_text("mine")
    with pytest.raises(FileExistsError):
        write_tensors(tmp_path / "x", {}, {})


def test_what_is_read_does_not_hang_on_the_file(tmp_path):
    path = tmp_path / "x"
    write_tensors(path, {"t": torch.arange(1000.0)}, {})
    tensors, _ = read_tensors(path)
    os.truncate(path, 0)  # a window into the file would now end the process with SIGBUS
    assert tensors["t"].sum() == 499500


@pytest.mark.parametrize(
    "content", [b"", b"x", b"\xff" * 8, b"\x02" + bytes(7) + b"{}trailing", b"\x80\x04K\x01." * 10]
)
def test_what_is_no_safetensors_file_is_refused_by_name(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"/x: expected a safetensors file, found"):
        read_tensors(tmp_path / "x")


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(CheckpointError, match=r"/x: expected a safetensors file"):
        read_tensors(tmp_path / "x")


def test_a_short_write_is_an_error(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_bytes(tmp_path / "x", [bytes(600), bytes(600)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
