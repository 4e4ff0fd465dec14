"""`as_rank`: events of one rank with the process, threads and GPU of another.

Ranks of one machine are processes of their own, each with the GPU that has its number there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from torchtraceap.lab.generation.program import Program

__all__ = ["as_rank"]

_NUMBER = re.compile(rb'"(pid|tid|device)"\s*:\s*(\d+)')
_NAMED = b'"name": "process_'
"""Part of events that name processes: those of all GPUs are there already."""
_APART = 67
"""Between the numbers of processes that are started one after the other, with their threads."""
_GPUS = 8
"""Of a machine."""


def as_rank(text: bytes, program: Program, rank: int) -> bytes:
    """The text of a file, with an event in each line, as of a rank.

    Args:
        text: As of the program's own rank.
        program: Whose numbers the text has.
        rank: From 0; the program's own numbers are those of rank 0.
    """
    if rank == 0:
        return text
    host = _host_numbers(program, rank * _APART)
    numbers = {**host, **_gpu_numbers(program, rank % _GPUS)}
    begin = text.index(b'"traceEvents"')
    lines = [
        _NUMBER.sub(partial(_moved, host if _NAMED in line else numbers), line)
        for line in text[begin:].split(b"\n")
    ]
    return text[:begin] + b"\n".join(lines)


def _host_numbers(program: Program, more: int) -> dict[bytes, bytes]:
    """By what is written of a process or a thread what is to be written."""
    process = program.like_call.get("pid")
    if not isinstance(process, int):
        return {}
    found = {b"pid %d" % process: b"%d" % (process + more)}
    streams = {tid for pid, tid in _tracks(program) if pid != str(process)}
    for pid, tid in _tracks(program):
        if pid == str(process) and tid.isdecimal() and tid not in streams:
            found[b"tid " + tid.encode()] = b"%d" % (int(tid) + more)
    return found


def _gpu_numbers(program: Program, gpu: int) -> dict[bytes, bytes]:
    """The same of the program's GPU, where it is the first one."""
    if program.like_kernel.get("pid") != 0:
        return {}
    return {b"pid 0": b"%d" % gpu, b"device 0": b"%d" % gpu}


def _moved(numbers: Mapping[bytes, bytes], found: re.Match[bytes]) -> bytes:
    number = numbers.get(found[1] + b" " + found[2])
    return found[0] if number is None else b'"%s": %s' % (found[1], number)


def _tracks(program: Program) -> list[tuple[str, str]]:
    return [(track.pid, track.tid) for track in program.table.tracks]
