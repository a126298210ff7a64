"""What every disk must do: one suite for the real one and the simulated one."""

import errno

import pytest


def test_what_is_written_is_read(bench):
    file = bench.disk.create(f"{bench.root}/a")
    file.write(3, [b"abc", memoryview(b"defg"), bytearray(b"h")])
    assert file.size() == 11
    assert file.read(0, 100) == b"\0\0\0abcdefgh"
    assert file.read(4, 2) == b"bc"
    assert file.read(11, 5) == b""
    assert file.path == f"{bench.root}/a"


def test_more_buffers_than_one_call_takes_are_written_in_order(bench):
    file = bench.disk.create(f"{bench.root}/a")
    buffers = [bytes([i % 251]) * (i % 7) for i in range(5_000)]
    file.write(10, buffers)
    assert file.read(10, 1 << 20) == b"".join(buffers)


def test_overwriting_keeps_the_bytes_around(bench):
    file = bench.disk.create(f"{bench.root}/a")
    file.write(0, [b"0123456789"])
    file.write(4, [b"xx"])
    file.sync()
    assert file.read(0, 10) == b"0123xx6789"


def test_truncate_shortens_and_extends_with_zeros(bench):
    file = bench.disk.create(f"{bench.root}/a")
    file.write(0, [b"0123456789"])
    file.truncate(4)
    file.truncate(6)
    assert file.read(0, 10) == b"0123\0\0"


def test_create_refuses_a_name_that_exists(bench):
    bench.disk.create(f"{bench.root}/a").close()
    with pytest.raises(FileExistsError):
        bench.disk.create(f"{bench.root}/a")


@pytest.mark.parametrize("operation", ["open", "size", "unlink", "map", "list_dir", "sync_dir", "remove_dir"])
def test_a_missing_path_is_named_in_the_error(bench, operation):
    with pytest.raises(FileNotFoundError) as caught:
        getattr(bench.disk, operation)(f"{bench.root}/none")
    assert caught.value.filename == f"{bench.root}/none"


def test_a_file_opened_for_reading_cannot_be_written(bench):
    bench.disk.create(f"{bench.root}/a").close()
    file = bench.disk.open(f"{bench.root}/a")
    with pytest.raises(OSError, match="Bad file") as caught:
        file.write(0, [b"x"])
    assert caught.value.errno == errno.EBADF
    assert caught.value.filename == f"{bench.root}/a"


def test_a_closed_file_cannot_be_used_and_closing_twice_is_fine(bench):
    file = bench.disk.create(f"{bench.root}/a")
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file"):
        file.read(0, 1)


def test_rename_replaces_and_open_files_keep_what_they_opened(bench):
    disk, root = bench.disk, bench.root
    old, new = disk.create(f"{root}/a"), disk.create(f"{root}/b")
    old.write(0, [b"old"])
    new.write(0, [b"newer"])
    disk.rename(f"{root}/b", f"{root}/a")
    assert disk.list_dir(root) == ["a"]
    assert disk.size(f"{root}/a") == 5
    assert old.read(0, 10) == b"old"


def test_an_unlinked_file_can_still_be_read_and_so_can_its_map(bench):
    disk, root = bench.disk, bench.root
    file = disk.create(f"{root}/a")
    file.write(0, [b"content"])
    mapped = disk.map(f"{root}/a")
    disk.unlink(f"{root}/a")
    assert not disk.exists(f"{root}/a")
    assert file.read(0, 10) == b"content"
    assert bytes(mapped) == b"content"
    assert mapped.readonly


def test_an_empty_file_maps_to_nothing(bench):
    bench.disk.create(f"{bench.root}/a").close()
    assert bytes(bench.disk.map(f"{bench.root}/a")) == b""


def test_directories_are_listed_sorted_and_removed_only_when_empty(bench):
    disk, root = bench.disk, bench.root
    disk.make_dir(f"{root}/d")
    disk.make_dir(f"{root}/d")
    for name in ("c", "a", "b"):
        disk.create(f"{root}/d/{name}").close()
    assert disk.list_dir(f"{root}/d") == ["a", "b", "c"]
    with pytest.raises(OSError, match="not empty") as caught:
        disk.remove_dir(f"{root}/d")
    assert caught.value.errno == errno.ENOTEMPTY
    for name in ("c", "a", "b"):
        disk.unlink(f"{root}/d/{name}")
    disk.remove_dir(f"{root}/d")
    assert not disk.exists(f"{root}/d")


def test_make_dir_over_a_file_is_refused(bench):
    bench.disk.create(f"{bench.root}/a").close()
    with pytest.raises(FileExistsError):
        bench.disk.make_dir(f"{bench.root}/a")
    assert not bench.disk.exists(f"{bench.root}/a/b")


def test_a_lock_is_held_until_it_is_closed(bench):
    path = f"{bench.root}/lock"
    lock = bench.disk.lock(path)
    with pytest.raises(BlockingIOError) as caught:
        bench.disk.lock(path)
    assert caught.value.filename == path
    lock.close()
    bench.disk.lock(path).close()


def test_syncing_and_dropping_the_cache_change_nothing_that_was_synced(bench):
    disk, root = bench.disk, bench.root
    file = disk.create(f"{root}/a")
    file.write(0, [b"content"])
    file.sync()
    disk.sync_dir(root)
    file.drop_cache()
    assert file.read(0, 10) == b"content"
    assert disk.free_bytes(root) > 0
