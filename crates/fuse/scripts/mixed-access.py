#!/usr/bin/env python3
"""One file read and written at random in every way at once: buffered, with O_DIRECT, appended to, mapped, truncated, opened again;
compared with a model. mixed-access.py FILE SEED OPERATIONS; `mixed-access` runs it on mounts."""
import mmap
import os
import random
import sys

path, seed, operations = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
random = random.Random(seed)
SIZE = 1 << 20
model = bytearray()
if os.path.exists(path):
    os.unlink(path)


def put(offset, content):
    end = offset + len(content)
    if len(model) < end:
        model.extend(bytes(end - len(model)))
    model[offset:end] = content


def same(what, seen, offset, length):
    assert seen == bytes(model[offset:offset + length]), (what, seed, step, offset, length, len(seen), len(model))


def some(length):
    return bytes([random.randrange(256)]) * length


buffered = os.open(path, os.O_RDWR | os.O_CREAT)
direct = os.open(path, os.O_RDWR | os.O_DIRECT)
append = os.open(path, os.O_WRONLY | os.O_APPEND)
aligned = mmap.mmap(-1, 1 << 17)
for step in range(operations):
    choice = random.randrange(9)
    offset = random.randrange(SIZE)
    whole = offset & ~4095
    if choice == 0:
        content = some(random.randrange(1, 70000))
        os.pwrite(buffered, content, offset)
        put(offset, content)
    elif choice == 1:
        content = some(random.randrange(1, 20) * 4096)
        aligned[:len(content)] = content
        os.pwritev(direct, [memoryview(aligned)[:len(content)]], whole)
        put(whole, content)
    elif choice == 2:
        length = random.randrange(1, 100000)
        same("buffered read", os.pread(buffered, length, offset), offset, length)
    elif choice == 3:
        length = random.randrange(1, 30) * 4096
        count = os.preadv(direct, [memoryview(aligned)[:length]], whole)
        same("direct read", aligned[:count], whole, length)
    elif choice == 4:
        os.ftruncate(buffered, offset)
        del model[offset:]
        model.extend(bytes(offset - len(model)))
    elif choice == 5 and len(model) < SIZE + (1 << 18):
        content = some(random.randrange(1, 9000))
        os.write(append, content)
        put(len(model), content)
    elif choice == 6 and len(model) >= 4096:
        length = len(model) & ~4095
        with mmap.mmap(buffered, length) as mapped:
            start = random.randrange(length)
            end = min(length, start + random.randrange(1, 9000))
            same("map", mapped[start:end], start, end - start)
            content = some(end - start)
            mapped[start:end] = content
            mapped.flush()
        put(start, content)
    elif choice == 7:
        assert os.fstat(direct).st_size == len(model), ("size", seed, step, os.fstat(direct).st_size, len(model))
    elif choice == 8:
        which = random.randrange(3)
        if which == 0:
            os.close(buffered)
            buffered = os.open(path, os.O_RDWR)
        elif which == 1:
            os.close(direct)
            direct = os.open(path, os.O_RDWR | os.O_DIRECT)
        else:
            os.close(append)
            append = os.open(path, os.O_WRONLY | os.O_APPEND)
for descriptor in (buffered, direct, append):
    os.close(descriptor)
with open(path, "rb") as file:
    assert file.read() == bytes(model), ("at the end", seed)
