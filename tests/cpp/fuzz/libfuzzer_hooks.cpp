// What libFuzzer calls to change inputs: mostly as traces, sometimes as bytes.

#include <algorithm>
#include <cstring>

#include "event_mutator.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace traceap::fuzz {
namespace {

const Words& words() {
  static const Words read = read_words(TRACEAP_FUZZ_DICTIONARY);
  return read;
}

void mutate_bytes(std::string& text, std::size_t max_bytes) {
  const std::size_t size = text.size();
  text.resize(std::max(size, max_bytes));
  text.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(text.data()), size, text.size()));
}

/// Drops events from the end until the input fits.
std::size_t store(Input input, std::uint8_t* out, std::size_t max_size) {
  std::string bytes = join_input(input);
  while (bytes.size() > max_size) {
    TraceParts last = take_apart(input.texts.back());
    if (last.events.size() > 1) {
      last.events.resize(last.events.size() / 2);
      input.texts.back() = put_together(last);
    } else if (input.texts.size() > 1) {
      input.texts.pop_back();
    } else {
      break;
    }
    bytes = join_input(input);
  }
  bytes.resize(std::min(bytes.size(), max_size));
  std::memcpy(out, bytes.data(), bytes.size());
  return bytes.size();
}

std::string_view view(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace
}  // namespace traceap::fuzz

using namespace traceap::fuzz;

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  if (seed % TRACEAP_FUZZ_BYTES_ONE_IN == 0) return LLVMFuzzerMutate(data, size, max_size);
  Input input = split_input(view(data, size));
  EventMutator(words(), mutate_bytes, seed).mutate(input);
  return store(std::move(input), data, max_size);
}

extern "C" std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* data, std::size_t size,
                                                 const std::uint8_t* other, std::size_t other_size,
                                                 std::uint8_t* out, std::size_t max_size,
                                                 unsigned seed) {
  Input input = split_input(view(data, size));
  EventMutator(words(), mutate_bytes, seed).cross(input, split_input(view(other, other_size)));
  return store(std::move(input), out, max_size);
}
