#include "input.hpp"

namespace traceap::fuzz {
namespace {

constexpr std::string_view kNextText = "\n\x1e\n", kChoices = "\n\x1f\n";

}  // namespace

Input split_input(std::string_view bytes) {
  Input input;
  if (const auto place = bytes.rfind(kChoices); place != std::string_view::npos) {
    input.choices = bytes.substr(place + kChoices.size());
    bytes = bytes.substr(0, place);
  }
  for (;;) {
    const auto place = bytes.find(kNextText);
    input.texts.emplace_back(bytes.substr(0, place));
    if (place == std::string_view::npos) return input;
    bytes.remove_prefix(place + kNextText.size());
  }
}

std::string join_input(const Input& input) {
  std::string bytes;
  for (const std::string& text : input.texts) {
    if (&text != &input.texts.front()) bytes += kNextText;
    bytes += text;
  }
  if (!input.choices.empty()) (bytes += kChoices) += input.choices;
  return bytes;
}

std::uint8_t Choices::byte() {
  if (bytes_.empty()) return 0;
  const auto byte = static_cast<std::uint8_t>(bytes_.front());
  bytes_.remove_prefix(1);
  return byte;
}

std::size_t Choices::below(std::size_t bound) {
  std::size_t value = byte();
  if (bound > 256) value = value << 8 | byte();
  return value % bound;
}

std::int64_t Choices::number() {
  const std::uint8_t first = byte();
  if (first < 0xf0) return static_cast<std::int64_t>(first) - 0x10;
  std::uint64_t bits = 0;
  for (int shift = 0; shift < 64; shift += 8) bits |= std::uint64_t{byte()} << shift;
  return static_cast<std::int64_t>(bits);
}

}  // namespace traceap::fuzz
