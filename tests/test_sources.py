"""Every source gives the array that was saved, block by block; every defect is an error with a hint."""

import json
import os
import pickle
import re
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zipfile
from contextlib import suppress

import numpy as np
import pytest
import scipy.sparse
import zarr
from numpy.lib import format as npy_format

from aweigh.io.errors import DataError, StorageError, UsageError
from aweigh.io.sources import open_column, open_source, split_spec

ROWS, COLUMNS = 23, 5
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(range(256))


@pytest.fixture
def table():
    return np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)


def blocks_of(spec, rows_per_block):
    source = open_source(str(spec))
    blocks = list(source.blocks(rows_per_block))
    assert [len(b) for b in blocks[:-1]] == [rows_per_block] * (len(blocks) - 1)
    assert all(b.flags.c_contiguous and b.dtype == source.dtype and b.dtype.isnative for b in blocks)
    whole = np.concatenate(blocks)
    assert whole.shape == (source.rows, source.columns)
    return whole


def refused(spec, match, opener=open_source, error=DataError):
    """Opens and reads what must be refused with this message and some hint."""
    with pytest.raises(error, match=match) as caught:
        for _ in getattr(opener(str(spec)), "blocks", lambda _: ())(4):
            pass
    assert caught.value.hint
    return caught.value


# Each writer saves x and returns the spec of the view.


def npy_c(folder, x):
    np.save(folder / "x.npy", x)
    return folder / "x.npy"


def npy_fortran(folder, x):
    np.save(folder / "x.npy", np.asfortranarray(x))
    return folder / "x.npy"


def npy_version_2(folder, x):
    with open(folder / "x.npy", "wb") as file:
        npy_format.write_array(file, x, version=(2, 0))
    return folder / "x.npy"


def npy_big_endian(folder, x):
    return npy_c(folder, x.astype(x.dtype.newbyteorder(">")))


def npz_stored(folder, x):
    np.savez(folder / "x.npz", a=x, labels=np.arange(3))
    return f"{folder / 'x.npz'}:a"


def npz_deflated(folder, x):
    np.savez_compressed(folder / "x.npz", a=x, b=x)
    return f"{folder / 'x.npz'}:a"


def npz_fortran(folder, x):
    np.savez_compressed(folder / "x.npz", a=np.asfortranarray(x), b=x)
    return f"{folder / 'x.npz'}:a"


def npz_sole(folder, x):
    np.savez(folder / "x.npz", a=x, labels=np.arange(3))
    return folder / "x.npz"


def npz_csr(folder, x):
    s = scipy.sparse.csr_array(x)
    parts = {"a_data": s.data, "a_indices": s.indices, "a_indptr": s.indptr, "a_shape": np.array(s.shape)}
    np.savez_compressed(folder / "x.npz", **parts, b=x)
    return f"{folder / 'x.npz'}:a"


def csr_by_hand(folder, x):
    """CSR parts in dtypes that scipy.sparse does not know."""
    rows, columns = x.nonzero()
    indptr = np.searchsorted(rows, np.arange(len(x) + 1))
    np.savez(folder / "x.npz", a_data=x[rows, columns], a_indices=columns, a_indptr=indptr, a_shape=x.shape)
    return f"{folder / 'x.npz'}:a"


def npz_csr_sole(folder, x):
    csr_by_hand(folder, x)
    return folder / "x.npz"


def npz_scipy(folder, x):
    scipy.sparse.save_npz(folder / "x.npz", scipy.sparse.csr_matrix(x))
    return folder / "x.npz"


def csv_plain(folder, x, name="x.csv", header="", delimiter=","):
    np.savetxt(folder / name, x, fmt="%.18g", header=header, comments="", delimiter=delimiter)
    return folder / name


def csv_header(folder, x):
    return csv_plain(folder, x, header=",".join("abcde"))


def tsv_header(folder, x):
    return csv_plain(folder, x, "x.TSV", "\t".join("abcde"), "\t")


def csv_excel(folder, x):
    """With a byte order mark, Windows line ends, quotes and a last empty line."""
    body = "\r\n".join(",".join(f'"{v!r}"' for v in row) for row in x.tolist())
    (folder / "x.csv").write_bytes(("\ufeffa,b,c,d,e\r\n" + body + "\r\n\r\n").encode())
    return folder / "x.csv"


def zarr_group(folder, x, zarr_format=3, **options):
    group = zarr.open_group(folder / "x.zarr", mode="w", zarr_format=zarr_format)
    group.create_array("views/a", data=x, chunks=(4, 3), **options)
    return f"{folder / 'x.zarr'}:views/a"


def zarr_v2(folder, x):
    return zarr_group(folder, x, 2)


def zarr_v2_fortran(folder, x):
    return zarr_group(folder, x, 2, order="F")


def zarr_sharded(folder, x):
    return zarr_group(folder, x, shards=(8, 6))


def zarr_path(folder, x):
    return zarr_group(folder, x).replace(".zarr:", ".zarr/")


def zarr_sole(folder, x):
    return zarr_group(folder, x).partition(":")[0]


def zarr_rows(folder, x):
    zarr.create_array(folder / "x.zarr", data=x, chunks=(max(len(x) // 64, 1), x.shape[1]))
    return folder / "x.zarr"


def zarr_bare(folder, x):
    zarr.create_array(folder / "plain", data=x, chunks=(50, 2))
    return folder / "plain"


NPY_WRITERS = [npy_c, npy_fortran, npy_version_2, npy_big_endian]
NPZ_WRITERS = [npz_stored, npz_deflated, npz_fortran, npz_sole, npz_csr, npz_csr_sole, npz_scipy]
CSV_WRITERS = [csv_plain, csv_header, tsv_header, csv_excel]
ZARR_WRITERS = [
    zarr_group,
    zarr_v2,
    zarr_v2_fortran,
    zarr_sharded,
    zarr_rows,
    zarr_path,
    zarr_sole,
    zarr_bare,
]
WRITERS = [*NPY_WRITERS, *NPZ_WRITERS, *CSV_WRITERS, *ZARR_WRITERS]


@pytest.mark.parametrize("rows_per_block", [1, 4, 7, ROWS, ROWS + 5])
@pytest.mark.parametrize("write", WRITERS)
def test_blocks_equal_the_array(tmp_path, table, write, rows_per_block):
    spec = write(tmp_path, table)
    np.testing.assert_array_equal(blocks_of(spec, rows_per_block), table)
    source = pickle.loads(pickle.dumps(open_source(str(spec))))
    assert f"{ROWS} x {COLUMNS}, float" in source.describe()
    np.testing.assert_array_equal(np.concatenate(list(source.blocks(rows_per_block))), table)


@pytest.mark.parametrize("write", [npy_fortran, npz_fortran, npz_csr, csv_plain, zarr_group])
@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1)])
def test_a_single_row_or_column(tmp_path, write, shape):
    x = np.arange(1.0, 5)[: max(shape)].reshape(shape)
    np.testing.assert_array_equal(blocks_of(write(tmp_path, x), 3), x)


@pytest.mark.parametrize("write", [npy_c, npz_deflated, npz_csr, csv_plain, zarr_group])
def test_a_block_has_at_least_one_row(tmp_path, table, write):
    with pytest.raises(ValueError, match="rows_per_block is 0, but a block needs at least 1 row"):
        list(open_source(str(write(tmp_path, table))).blocks(0))


@pytest.mark.parametrize(
    ("stored", "delivered"),
    [
        *((kind, "f4") for kind in ("?", "i1", "u1", "i2", "u2", "f2", "f4", ">f4")),
        *((kind, "f8") for kind in ("i4", "u4", "i8", "u8", "f8", ">f8", "longdouble")),
    ],
)
@pytest.mark.parametrize("write", [npy_c, npz_stored, csr_by_hand])
def test_delivered_dtype(tmp_path, write, stored, delivered):
    x = np.array([[0, 1], [1, 0]]).astype(stored)
    source = open_source(str(write(tmp_path, x)))
    assert source.dtype == np.dtype(delivered)
    np.testing.assert_array_equal(next(source.blocks(2)), [[0, 1], [1, 0]])


def test_csr_adds_what_is_stored_twice_and_keeps_empty_rows(tmp_path):
    parts = {"data": [100, 100, 5], "indices": [1, 1, 0], "indptr": [0, 0, 2, 3, 3], "shape": [4, 3]}
    dtypes = {"data": "i1", "indices": "u4", "indptr": "u8", "shape": "i4"}
    np.savez(tmp_path / "x.npz", **{f"a_{part}": np.array(v, dtypes[part]) for part, v in parts.items()})
    expected = [[0, 0, 0], [0, 200, 0], [5, 0, 0], [0, 0, 0]]
    for rows in (1, 2, 3, 9):
        np.testing.assert_array_equal(blocks_of(tmp_path / "x.npz", rows), expected)


def test_csr_without_values(tmp_path):
    np.testing.assert_array_equal(blocks_of(npz_csr(tmp_path, np.zeros((3, 2))), 2), np.zeros((3, 2)))


def test_csv_missing_values(tmp_path):
    (tmp_path / "x.csv").write_text("1,2\n,NaN\n -3 ,nan\n\n , +4e1\n")
    np.testing.assert_array_equal(
        blocks_of(tmp_path / "x.csv", 3), [[1, 2], [np.nan, np.nan], [-3, np.nan], [np.nan, 40]]
    )


# Shapes, dtypes


@pytest.mark.parametrize("write", [npy_c, npz_stored, zarr_group])
@pytest.mark.parametrize(
    ("shape", "match"),
    [
        ((6,), r"has 1 dimensions, shape \(6,\), but a view needs \(samples, features\)\n.*reshape\(-1, 1\)"),
        ((2, 3, 4), r"has 3 dimensions, shape \(2, 3, 4\).*\n.*reshape\(len\(x\), -1\)"),
        ((0, 3), r"has 0 rows, shape \(0, 3\)"),
        ((3, 0), r"has 0 columns, shape \(3, 0\)"),
    ],
)
def test_shapes_that_are_no_view(tmp_path, write, shape, match):
    if write is zarr_group:
        zarr.create_array(tmp_path / "x.zarr", shape=shape, dtype="f4")
        refused(tmp_path / "x.zarr", match)
    else:
        refused(write(tmp_path, np.zeros(shape, "f4")), match)


def test_a_single_array_of_one_dimension_needs_no_key_to_be_refused(tmp_path):
    np.savez(tmp_path / "x.npz", only=np.zeros(4))
    refused(tmp_path / "x.npz", r"x.npz:only has 1 dimensions.*\n.*reshape\(-1, 1\)")


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (np.ones((2, 2), complex), r"holds complex numbers \(complex128\).*\n.*x\.real and x\.imag"),
        (np.array([["a", "b"]]), r"holds text \(<U1\), but a view holds real numbers"),
        (np.array([[b"a"]]), r"holds text \(\|S1\)"),
        (np.array([[None, 1]]), r"holds Python objects \(object\).*\n.*never loaded"),
        (np.zeros((2, 2), [("a", "i4")]), r"holds structured records"),
        (np.zeros((2, 2), "M8[s]"), r"holds dates \(datetime64\[s\]\)"),
    ],
)
@pytest.mark.parametrize("write", [npy_c, npz_stored])
def test_dtypes_that_are_no_view(tmp_path, write, x, match):
    refused(write(tmp_path, x), match)


def test_dtypes_of_zarr_that_are_no_view(tmp_path):
    zarr.create_array(tmp_path / "x.zarr", shape=(2, 2), dtype="c16")
    refused(tmp_path / "x.zarr", "holds complex numbers")
    zarr.create_array(tmp_path / "text.zarr", shape=(2, 2), dtype=str)
    refused(tmp_path / "text.zarr", "holds text")


# Files that are not what they should be

SUFFIXES = (".npy", ".npz", ".csv", ".tsv")


@pytest.mark.parametrize("opener", [open_source, open_column])
@pytest.mark.parametrize("suffix", [*SUFFIXES, ".zarr", ".bin", ""])
def test_missing_file(tmp_path, suffix, opener):
    refused(tmp_path / f"no{suffix}", f"no{suffix} does not exist\nCheck the path", opener)
    refused(f"{tmp_path / f'no{suffix}'}:key", f"no{suffix} does not exist", opener)


@pytest.mark.parametrize("opener", [open_source, open_column])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_that_are_not_what_their_name_says(tmp_path, suffix, opener):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"")
    refused(path, r"is empty \(0 bytes\)\nWrite it again", opener)
    path.write_bytes(PNG)
    refused(path, rf"x{suffix} is not an? .* but a PNG image\nName the file by what it holds", opener)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    refused(path, "Git LFS pointer", opener)
    path.unlink()
    path.mkdir()
    refused(path, "is a folder, but holds no Zarr array or group", opener)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_text_and_noise_named_as_an_array(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    path.write_text("1,2\n3,4\n")
    refused(path, f"is not an? {suffix} file but text")
    path.write_bytes(b"\x00\x01\x02\xff")
    refused(path, r"but data that begins with b'\\x00\\x01\\x02\\xff'")


@pytest.mark.parametrize("name", ["x.feather", "x.csv.gz", "x"])
def test_unknown_suffix(tmp_path, name):
    (tmp_path / name).write_text("data")
    refused(tmp_path / name, r"but a source is one of \.npy, .*, \.zarr\nConvert it")


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "x.csv")
    refused(tmp_path / "x.csv", "is no regular file, but a source is read more than once")


def test_a_path_with_a_null_byte(tmp_path):
    refused(f"{tmp_path}/a\0b.npy", "does not exist")


@pytest.mark.parametrize("url", ["s3://user:secret@bucket/x.zarr:a", "https://host:9000/x.npy?token=secret"])
def test_urls_with_credentials_are_refused_without_repeating_them(url):
    error = refused(url, r"a (s3|https):// URL with credentials or parameters was given", error=UsageError)
    assert "secret" not in str(error)


@pytest.mark.parametrize("url", ["https://host/x.npy", "s3://bucket/x.csv", "s3://bucket/x.npz:a"])
def test_urls_that_cannot_be_streamed(url):
    refused(url, r"a source is a path, a file:// URL, or an s3:// URL of a .npy file or a Zarr store", error=UsageError)


@pytest.mark.parametrize("opener", [open_source, open_column])
@pytest.mark.parametrize("write", [npy_c, npz_stored, csv_plain, zarr_path])
def test_no_permission_is_a_storage_error(tmp_path, table, write, opener, monkeypatch):
    spec = write(tmp_path, table)

    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", denied)
    monkeypatch.setattr("os.listdir", denied)
    refused(spec, "may not be read: permission denied\nAsk its owner", opener, StorageError)


def test_an_error_of_the_disk_is_a_storage_error(tmp_path, table, monkeypatch):
    spec = npy_c(tmp_path, table)

    def broken(*_, **__):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("builtins.open", broken)
    refused(spec, "could not be read: Input/output error\nCheck that its disk", error=StorageError)


# .npy


def test_npy_takes_no_key(tmp_path, table):
    refused(f"{npy_c(tmp_path, table)}:a", r"is a single array, but the key 'a' was given\nGive .*x\.npy alone")


def test_npy_of_the_wrong_length(tmp_path, table):
    path = npy_c(tmp_path, table)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    refused(path, r"is truncated: \(23, 5\) of float32 takes 588 bytes, not 587\nWrite it again")
    path.write_bytes(whole[:40])
    refused(path, "has no valid .npy header")
    path.write_bytes(whole + b"x")
    refused(path, "is longer than its one array")


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 2), }",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<q9', 'fortran_order': False, 'shape': (2, 2), }",
        "{'descr': [], 'fortran_order': 3, 'shape': 'x', }",
        "((((((",
    ],
)
def test_npy_with_a_broken_header(tmp_path, header):
    text = header.ljust(117).encode() + b"\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(16))
    refused(tmp_path / "x.npy", "x.npy has no valid .npy header")


@pytest.mark.parametrize("write", [npy_c, npz_stored, npz_csr, csv_plain])
@pytest.mark.parametrize("rows", [ROWS - 1, ROWS + 1])
def test_a_file_that_changed_since_it_was_opened(tmp_path, table, write, rows):
    source = open_source(str(write(tmp_path, table)))
    write(tmp_path, np.resize(table, (rows, COLUMNS)))
    with pytest.raises(DataError, match="changed while it was read"):
        list(source.blocks(4))


# .npz


def test_npz_lists_the_keys(tmp_path, table):
    path = tmp_path / "x.npz"
    np.savez(path, a=table, b=table, labels=np.arange(ROWS))
    refused(f"{path}:c", r"x\.npz has no 'c'; it holds a, b, labels\n.*x\.npz:KEY")
    refused(f"{path}:c", r"x\.npz has no 'c'; it holds a, b, labels", open_column)
    refused(path, r"holds 2 two-dimensional arrays: a, b\nSay which one")
    np.savez(path, one=np.arange(3), two=np.arange(3))
    refused(path, "holds no two-dimensional array, only one, two\nWrite a")
    refused(path, "holds 2 one-dimensional arrays: one, two", open_column)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "none")
    refused(path, "x.npz holds no two-dimensional array\nWrite a")


def test_npz_lists_sparse_views_under_their_key(tmp_path, table):
    npz_csr(tmp_path, table)
    refused(tmp_path / "x.npz", "holds 2 two-dimensional arrays: a, b")
    refused(tmp_path / "x.npz:c", "has no 'c'; it holds a, b\n")


def test_npz_cuts_and_cleans_what_it_lists(tmp_path):
    np.savez(tmp_path / "x.npz", **{f"v{i}\x1b[31m": np.zeros((1, 1)) for i in range(40)})
    error = refused(tmp_path / "x.npz:no", "and 10 more")
    assert "\x1b" not in str(error)


@pytest.mark.parametrize("write", [npz_stored, npz_deflated, npz_fortran, npz_csr])
def test_npz_with_a_flipped_byte_names_the_member(tmp_path, write):
    x = np.random.default_rng(1).normal(size=(500, 20))
    spec = write(tmp_path, x)
    path = tmp_path / "x.npz"
    member = "a_data.npy" if write is npz_csr else "a.npy"
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(member)
    raw = bytearray(path.read_bytes())
    raw[info.header_offset + info.compress_size // 2] ^= 0x10
    path.write_bytes(raw)
    refused(spec, rf"x\.npz:{member[:-4]} is damaged: .*\nWrite it again")


def test_npz_truncated(tmp_path, table):
    path = tmp_path / "x.npz"
    npz_stored(tmp_path, table)
    path.write_bytes(path.read_bytes()[:-30])
    refused(path, "x.npz is damaged: File is not a zip file")
    path.write_bytes(b"PK\x03\x04")
    refused(path, "x.npz is damaged")


def test_npz_encrypted(tmp_path, table):
    npz_stored(tmp_path, table)
    path = tmp_path / "x.npz"
    raw = bytearray(path.read_bytes())
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for found in re.finditer(re.escape(magic), bytes(raw)):
            raw[found.start() + offset] |= 1
    path.write_bytes(raw)
    refused(f"{path}:a", "x.npz:a is encrypted\nUnpack it with its password")
    refused(f"{path}:labels", "x.npz:labels is encrypted", open_column)


def test_npz_with_an_unknown_compression(tmp_path, table):
    npz_stored(tmp_path, table)
    path = tmp_path / "x.npz"
    raw = path.read_bytes()
    for magic, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = raw.index(magic) + offset
        raw = raw[:at] + b"\x63\x00" + raw[at + 2 :]
    path.write_bytes(raw)
    refused(f"{path}:a", "x.npz:a is damaged: That compression method is not supported")


def test_npz_member_of_the_wrong_length(tmp_path, table):
    np.save(tmp_path / "a.npy", table)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", (tmp_path / "a.npy").read_bytes()[:-5])
        archive.writestr("b.npy", "text")
    refused(tmp_path / "x.npz:a", r"x\.npz:a is truncated: .* takes 588 bytes, not 583")
    refused(tmp_path / "x.npz:b", r"x\.npz:b has no valid \.npy header")


def test_any_damage_to_an_npz_is_an_aweigh_error_or_harmless(tmp_path, table):
    """Bytes flipped and tails cut all over the file: the same array or a DataError, and nothing else."""
    rng = np.random.default_rng(0)
    for write in (npz_deflated, npz_csr, npz_fortran):
        spec = write(tmp_path, table)
        path, whole = tmp_path / "x.npz", (tmp_path / "x.npz").read_bytes()
        for trial in range(150):
            raw = bytearray(whole)
            raw[rng.integers(len(raw))] ^= 1 << rng.integers(8)
            path.write_bytes(raw if trial % 5 else raw[: rng.integers(1, len(raw))])
            with suppress(DataError):
                np.testing.assert_array_equal(blocks_of(spec, 7), table)


def test_a_full_disk_for_a_fortran_member(tmp_path, table, monkeypatch):
    spec = npz_fortran(tmp_path, table)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    refused(spec, "cannot be unpacked to .*: No space left on device\nFree space", error=StorageError)


# CSR


def save_csr(path, prefix="a_", **changes):
    parts = {"data": np.ones(3), "indices": np.array([0, 1, 0]), "indptr": np.array([0, 2, 3])}
    parts["shape"] = np.array([2, 2])
    np.savez(path, **{prefix + part: values for part, values in (parts | changes).items()})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"indptr": np.array([1, 2, 3])}, "indptr begins with 1, not with 0"),
        ({"indptr": np.array([0, 3, 2])}, "indptr does not rise from 0 to the number of stored values, 3"),
        ({"indptr": np.array([0, 2, 4])}, "indptr does not rise from 0 to the number of stored values, 3"),
        ({"indptr": np.array([0, 1, 2])}, "indptr does not rise from 0 to the number of stored values, 3"),
        (
            {"indptr": np.array([0, 3])},
            r"parts of the shapes data \(3,\), .* indptr \(2,\) do not make 2 rows",
        ),
        ({"indptr": np.array([0.0, 2, 3])}, "indptr holds float64, not integers"),
        ({"indices": np.array([0, 2, 0])}, "a column index lies outside 0 to 1"),
        ({"indices": np.array([0, -1, 0])}, "a column index lies outside 0 to 1"),
        ({"indices": np.array([0, 1])}, "do not make 2 rows"),
        ({"data": np.ones((3, 1))}, "do not make 2 rows"),
        ({"data": np.ones(3, complex)}, "holds complex numbers"),
        ({"shape": np.array([2, 2, 2])}, "has 3 dimensions"),
        ({"shape": np.array([2, 0])}, "has 0 columns"),
        ({"shape": np.array([2.5, 2])}, r"its shape is \[2.5, 2.0\], not two integers"),
        ({"shape": np.array([-2, 2])}, "not two integers"),
    ],
)
def test_csr_parts_that_contradict_each_other(tmp_path, changes, match):
    save_csr(tmp_path / "x.npz", **changes)
    refused(tmp_path / "x.npz:a", rf"x\.npz:a .*{match}")


def test_incomplete_csr_parts_are_a_missing_key(tmp_path):
    np.savez(tmp_path / "x.npz", a_data=np.ones(3), a_indices=np.arange(3), a_shape=np.array([1, 3]))
    refused(tmp_path / "x.npz:a", "has no 'a'; it holds a_data, a_indices, a_shape")


@pytest.mark.parametrize("kind", ["csc", "coo", "bsr", "dia"])
def test_other_sparse_formats(tmp_path, table, kind):
    scipy.sparse.save_npz(tmp_path / "x.npz", scipy.sparse.csr_array(table).asformat(kind))
    refused(tmp_path / "x.npz", rf"format {kind}, but only csr is read row by row\n.*x\.tocsr\(\)")


def test_scipy_file_without_a_part(tmp_path):
    np.savez(tmp_path / "x.npz", format=b"csr", shape=[2, 2], data=np.ones(1), indices=np.zeros(1, int))
    refused(tmp_path / "x.npz", "has no 'indptr'; it holds format, shape, data, indices")


# .csv


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a,b\n1,2\n3,x\n", r"x\.csv, line 3, column 2 \(b\): 'x' is not a number\nGive text its own file"),
        ("1,2\n\n3,x\n", r"line 3, column 2: 'x' is not a number"),
        ("1,2\n3,1_000\n", r"line 2, column 2: '1_000' is not a number"),
        ("1.5,NA\n3,4\n", r"line 1, column 2: 'NA' is not a number\n.*empty cells or nan"),
        ("a;b\n1;2\n", r"'1;2' is not a number\nIts cells seem to be separated otherwise"),
        ("1,2\n3\n", "line 2 has 1 columns, but the lines above have 2"),
        ("1,2\n3,4,5\n", "line 2 has 3 columns, but the lines above have 2"),
        ("a,b\n", "has 0 rows below its header"),
        ("\n\n", "has 0 rows\n"),
        ('1,2\n"3,4\n', r"line \d: unexpected end of data\nCheck the quotes"),
        ("0,1,2\n5,5,5\n", r"line 1 counts 0, 1, 2, …, which may be column numbers or a sample\nDrop"),
        (",0,1\n0,5,5\n", "line 1 counts 0, 1, 2"),
        ("c,1,2\nd,5,5\n", "line 1 begins with text and goes on with numbers"),
    ],
)
def test_csv_errors_name_the_line(tmp_path, text, match):
    (tmp_path / "x.csv").write_text(text)
    refused(tmp_path / "x.csv", match)


def test_csv_that_is_not_utf_8(tmp_path):
    (tmp_path / "x.csv").write_bytes("größe\n1\n".encode("latin-1"))
    refused(tmp_path / "x.csv", r"after line 0: byte 0xf6 is not UTF-8 text\nSave it as UTF-8")
    (tmp_path / "x.csv").write_bytes("a\n1\n".encode("utf-16"))
    refused(tmp_path / "x.csv", "is not a text table but UTF-16 text")


def test_csv_view_by_column_or_prefix(tmp_path):
    (tmp_path / "x.csv").write_text("a_1,b,a_2\n1,2,3\n4,5,6\n")
    for key, expected in (("a_*", [[1, 3], [4, 6]]), ("a_", [[1, 3], [4, 6]]), ("b", [[2], [5]])):
        np.testing.assert_array_equal(blocks_of(f"{tmp_path / 'x.csv'}:{key}", 1), expected)
    refused(f"{tmp_path / 'x.csv'}:c", "has no 'c'; it holds a_1, b, a_2")


@pytest.mark.parametrize("text", ["id,a,b\nu,1,2\nv,3,4\n", ",a,b\nu,1,2\nv,3,4\n", ",0,1\nu,1,2\nv,3,4\n"])
def test_csv_whose_first_column_names_the_rows(tmp_path, text):
    (tmp_path / "x.csv").write_text(text)
    np.testing.assert_array_equal(blocks_of(tmp_path / "x.csv", 1), [[1, 2], [3, 4]])
    assert open_source(str(tmp_path / "x.csv")).ids().tolist() == ["u", "v"]


def test_csv_row_numbers_are_neither_features_nor_ids(tmp_path):
    (tmp_path / "x.csv").write_text(",a,b\n0,5,6\n1,7,8\n")
    np.testing.assert_array_equal(blocks_of(tmp_path / "x.csv", 1), [[5, 6], [7, 8]])
    assert open_source(str(tmp_path / "x.csv")).ids() is None


# Zarr


def test_zarr_lists_the_arrays(tmp_path, table):
    spec = zarr_group(tmp_path, table).removesuffix("/a")
    group = zarr.open_group(tmp_path / "x.zarr")
    group.create_array("views/b", data=table)
    group.create_array("labels", data=np.arange(ROWS))
    listed = "it holds labels, views/a, views/b"
    for key in ("views/c", "views", "", "..", "labels/x"):
        refused(f"{tmp_path / 'x.zarr'}:{key}", rf"x\.zarr has no '{re.escape(key)}'; {listed}")
    refused(f"{tmp_path / 'x.zarr'}/views/c", rf"x\.zarr has no 'views/c'; {listed}")
    refused(tmp_path / "x.zarr", "holds 2 two-dimensional arrays: views/a, views/b")
    refused(f"{spec}:no", "has no 'views:no'")
    refused(f"{tmp_path / 'x.zarr' / 'views' / 'a'}:b", "is a single array, but the key 'b' was given")
    zarr.open_group(tmp_path / "empty.zarr", mode="w")
    refused(tmp_path / "empty.zarr", "empty.zarr holds no two-dimensional array\nWrite a")


def test_zarr_that_is_none(tmp_path):
    (tmp_path / "folder").mkdir()
    refused(tmp_path / "folder", "is a folder, but holds no Zarr array or group\nGive the folder")
    (tmp_path / "file.zarr").write_text("x")
    refused(tmp_path / "file.zarr", "is a file, but a Zarr store is a folder")
    (tmp_path / "bad.zarr").mkdir()
    for text in ("{", "[]", '{"zarr_format": 3, "node_type": "array", "shape": [1]}'):
        (tmp_path / "bad.zarr" / "zarr.json").write_text(text)
        refused(tmp_path / "bad.zarr", "bad.zarr is damaged: .+\nCheck that zarr.open reads it")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_with_a_torn_chunk(tmp_path, table, zarr_format):
    spec = zarr_group(tmp_path, table, zarr_format)
    folder = tmp_path / "x.zarr" / "views" / "a"
    chunk = folder / ("1.0" if zarr_format == 2 else "c/1/0")
    chunk.write_bytes(chunk.read_bytes()[:9])
    refused(spec, r"x\.zarr:views/a is damaged")


def test_zarr_never_unpickles(tmp_path):
    """An array whose chunk creates a file when it is unpickled."""
    zarr.create_array(tmp_path / "x.zarr", data=np.ones((2, 2), "f4"), zarr_format=2, compressors=None)
    about = tmp_path / "x.zarr" / ".zarray"
    trap, codec = tmp_path / "trap", {"id": "pickle", "protocol": 4}
    (tmp_path / "x.zarr" / "0.0").write_bytes(b"cbuiltins\nopen\n(V%s\nVw\ntR." % str(trap).encode())
    metadata = json.loads(about.read_text())
    text = {"dtype": "|O", "fill_value": "", "filters": [{"id": "vlen-utf8"}], "compressor": codec}
    for changes, match in (
        (text, "x.zarr is stored with the codec pickle, which is never loaded"),
        ({"compressor": codec}, "x.zarr is damaged"),
        ({"filters": [codec]}, "x.zarr is damaged"),
    ):
        about.write_text(json.dumps(metadata | changes))
        refused(tmp_path / "x.zarr", match)
        assert not trap.exists()


# Ids and labels


def column_npy(folder, values):
    return npy_c(folder, values)


def column_npz(folder, values):
    np.savez_compressed(folder / "x.npz", ids=values, a=np.zeros((3, 2)), b=np.zeros((3, 2)))
    return folder / "x.npz"


def column_zarr(folder, values):
    group = zarr.open_group(folder / "x.zarr", mode="w")
    group.create_array("a", data=np.zeros((3, 2)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions of zarr say that strings of fixed length have no specification
        group.create_array("ids", data=values)
    return folder / "x.zarr"


@pytest.mark.parametrize("write", [column_npy, column_npz, column_zarr])
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([3, 1, 2], "u1"), "i8"),
        (np.array([3, -1, 2], ">i4"), "i8"),
        (np.array([3, 1, 2**63 - 1], "u8"), "i8"),
        (np.array([0.5, np.nan], "f4"), "f8"),
        (np.array([True, False]), "?"),
        (np.array(["a", "größe", ""]), "U"),
        (np.array([b"a", "größe".encode()]), "U"),
    ],
)
def test_columns(tmp_path, write, values, dtype):
    column = open_column(str(write(tmp_path, values)))
    assert column.dtype.kind == np.dtype(dtype).kind
    assert column.dtype.isnative
    assert column.dtype.itemsize == 8 or column.dtype.kind in "Ub"
    expected = np.char.decode(values) if values.dtype.kind == "S" else values
    np.testing.assert_array_equal(column, expected)


@pytest.mark.parametrize("write", [column_npy, column_npz])
@pytest.mark.parametrize(
    ("values", "match"),
    [
        (np.array([1, 2**63], "u8"), r"holds 9223372036854775808, but integer ids .*\n.*astype\(str\)"),
        (np.array([b"\xff"]), r"holds bytes that are not UTF-8"),
        (np.array([None, "a"]), r"holds Python objects \(object\), but ids .*\n.*never unpickled"),
        (np.array([1j]), "holds complex numbers"),
        (np.array(["2024-01-01"], "M8[D]"), "holds dates"),
        (np.array([], int), "has 0 rows"),
        (np.array(5), r"has the shape \(\)"),
        (np.zeros((2, 3)), r"has the shape \(2, 3\), but ids and labels are one value a sample"),
    ],
)
def test_columns_that_are_refused(tmp_path, write, values, match):
    spec = write(tmp_path, values)
    refused(f"{spec}:ids" if write is column_npz else spec, match, open_column)


def test_a_matrix_of_one_column_is_a_column(tmp_path):
    np.testing.assert_array_equal(open_column(str(npy_c(tmp_path, np.array([[4], [5]])))), [4, 5])
    np.testing.assert_array_equal(open_column(str(npy_c(tmp_path, np.asfortranarray([[4], [5]])))), [4, 5])


def test_zarr_columns_of_text_of_any_length(tmp_path):
    for zarr_format in (2, 3):
        array = zarr.create_array(tmp_path / "x.zarr", shape=(2,), dtype=str, zarr_format=zarr_format, overwrite=True)
        array[:] = np.array(["a", "größe"], object)
        column = open_column(str(tmp_path / "x.zarr"))
        assert column.dtype == "<U5"
        assert column.tolist() == ["a", "größe"]


def test_zarr_columns_that_are_refused(tmp_path):
    zarr.create_array(tmp_path / "x.zarr", data=np.zeros((2, 3)))
    refused(tmp_path / "x.zarr", r"has the shape \(2, 3\)", open_column)
    zarr.create_array(tmp_path / "y.zarr", data=np.zeros(2, complex))
    refused(tmp_path / "y.zarr", "holds complex numbers", open_column)


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "-2", "0"], "i"),
        (["9223372036854775807"], "i"),
        (["1", "", "nan"], "f"),
        (["0.5", "1e3", "-.5"], "f"),
        (["007", "7"], "U"),
        (["9223372036854775808"], "U"),
        (["9007199254740993", "", "1"], "U"),
        (["1_0", "10"], "U"),
        (["a", "1"], "U"),
        (["", "b"], "U"),
    ],
)
def test_csv_columns_keep_apart_what_differs(tmp_path, cells, kind):
    (tmp_path / "x.csv").write_text("v,id\n" + "".join(f"0,{cell}\n" for cell in cells))
    column = open_column(f"{tmp_path / 'x.csv'}:id")
    assert column.dtype.kind == kind
    if kind == "U":
        assert column.tolist() == cells
    else:
        np.testing.assert_array_equal(column, [float(cell or "nan") for cell in cells])


def test_csv_columns_by_name_number_or_alone(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("1,2\n3,4\n")
    assert open_column(f"{path}:2").tolist() == [2, 4]
    refused(f"{path}:3", "has no '3'; it holds 1, 2", open_column)
    refused(path, "holds 2 columns: 1, 2\nSay which one", open_column)
    path.write_text("id, label\na,0\nb,1\n")
    assert open_column(f"{path}:label").tolist() == [0, 1]
    refused(f"{path}:2", "has no '2'; it holds id, label", open_column)
    path.write_text("id,id\na,0\n")
    refused(f"{path}:id", "has 2 columns 'id'", open_column)
    path.write_text("label\n3\n\n5\n\n\n")
    np.testing.assert_array_equal(open_column(str(path)), [3, np.nan, 5])


# PATH:KEY


@pytest.mark.parametrize(
    ("spec", "path", "key"),
    [
        ("x.npy", "x.npy", None),
        ("x.npz:a", "x.npz", "a"),
        ("x.npz:a:b/c", "x.npz", "a:b/c"),
        ("x.npz:", "x.npz", ""),
        ("a:b.npz", "a:b.npz", None),
        ("a:b.npz:k", "a:b.npz", "k"),
        ("folder:k", "folder", "k"),
        (r"C:\data\x.npy", r"C:\data\x.npy", None),
        (r"C:\data\x.npz:a", r"C:\data\x.npz", "a"),
        ("C:/data/x.zarr:views/a", "C:/data/x.zarr", "views/a"),
        ("s3://bucket/x.zarr", "s3://bucket/x.zarr", None),
        ("s3://bucket/x.zarr:views/a", "s3://bucket/x.zarr", "views/a"),
        ("s3://bucket/store:a", "s3://bucket/store", "a"),
        ("http://host:9000/x.zarr", "http://host:9000/x.zarr", None),
        ("http://host:9000/store", "http://host:9000/store", None),
        ("http://host:9000/x.zarr:a", "http://host:9000/x.zarr", "a"),
        ("file:///data/x%20y.npz:a", "/data/x y.npz", "a"),
    ],
)
def test_split_spec_of_what_does_not_exist(spec, path, key):
    assert split_spec(spec) == (path, key)


def test_split_spec_prefers_what_exists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.npz").touch()
    assert split_spec("a.npz:b.npz:c") == ("a.npz", "b.npz:c")
    (tmp_path / "a.npz:b.npz").touch()
    assert split_spec("a.npz:b.npz:c") == ("a.npz:b.npz", "c")
    (tmp_path / "a.npz:b.npz:c").touch()
    assert split_spec("a.npz:b.npz:c") == ("a.npz:b.npz:c", None)
    assert split_spec("~/a.npz:k") == (f"{tmp_path}/a.npz", "k")


# Memory


@pytest.mark.parametrize(
    "write",
    [npy_c, npy_fortran, npz_stored, npz_deflated, npz_fortran, npz_csr, npz_scipy, csv_plain, zarr_rows],
)
def test_about_two_blocks_are_in_memory(tmp_path, write):
    x = np.zeros((16_000 if write is not csv_plain else 2000, 256), np.float32)
    x[::7, ::16] = 1
    source = open_source(str(write(tmp_path, x)))
    rows_per_block = len(x) // 16
    block = rows_per_block * source.columns * source.dtype.itemsize
    tracemalloc.start()
    try:
        for _ in source.blocks(rows_per_block):
            pass
        assert tracemalloc.get_traced_memory()[1] < 2.5 * block + 2 * 2**20
    finally:
        tracemalloc.stop()


STREAM = """
import resource, sys
from aweigh.io.sources import open_source
for block in open_source(sys.argv[1]).blocks(10): pass
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
total = sum(float(block.sum()) for block in open_source(sys.argv[2]).blocks(4096))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, total)
"""


def test_a_large_npz_member_streams_in_little_memory(tmp_path):
    """200 MiB in blocks of 8 MiB: the peak of a process of its own rises by less than 60 MiB."""
    pieces, piece = 100, np.zeros((1024, 512), np.float32)
    piece[::7, ::16] = 1
    head = {"descr": "<f4", "fortran_order": False, "shape": (pieces * 1024, 512)}
    with (
        zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("a.npy", "w") as member,
    ):
        npy_format.write_array_header_1_0(member, head)
        for _ in range(pieces):
            member.write(piece.tobytes())
    (tmp_path / "small").mkdir()
    small = npz_deflated(tmp_path / "small", piece)
    command = [sys.executable, "-W", "error", "-c", STREAM, small, str(tmp_path / "x.npz")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    grown, total = done.stdout.split()
    assert float(total) == pieces * piece.sum()
    assert int(grown) < 60 * 1024
