#pragma once

namespace traceap {

/// For a process that reads a trace, answers and ends; it holds for all of it. Blocks of 2 MB and
/// more go back to the system when they are freed (by itself glibc keeps up to 32 MB, half a small
/// trace), and the first 192 MB of smaller ones lie in a heap of huge pages that is never given
/// back. Does nothing where the C library is not glibc.
void prepare_heap();

}  // namespace traceap
