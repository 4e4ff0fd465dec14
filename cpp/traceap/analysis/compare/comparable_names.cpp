#include "traceap/analysis/compare/comparable_names.hpp"

#include <cstddef>

namespace traceap {
namespace {

constexpr std::size_t kShortestHash = 32;  // Inductor's cache keys have 52 letters and digits

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }

/// First place from `from` on where `is` no longer holds.
template <class Is>
std::size_t run_end(std::string_view text, std::size_t from, Is is) {
  while (from < text.size() && is(text[from])) ++from;
  return from;
}

bool is_hash(std::string_view word) {
  if (word.size() < kShortestHash) return false;
  bool digits = false, letters = false;
  for (const char c : word) {
    digits = digits || is_digit(c);
    letters = letters || is_letter(c);
  }
  return digits && letters;
}

/// A run of letters and digits as it is compared.
void append_word(std::string_view word, std::string& out) {
  if (word.size() > 2 && word.starts_with("0x") && run_end(word, 2, is_hex) == word.size()) {
    out += "0x";
  } else if (is_hash(word)) {
    out += '#';
  } else if (is_digit(word.front())) {
    const std::size_t rest = run_end(word, 0, is_digit);
    if (out.empty() || out.back() != '#') out += '#';
    out += word.substr(rest);
  } else {
    out += word;
  }
}

void replace(std::string& text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  if (at != std::string::npos) text.replace(at, from.size(), to);
}

}  // namespace

std::string comparable_name(std::string_view name) {
  std::string out;
  out.reserve(name.size());
  for (std::size_t i = 0; i < name.size();) {
    const auto is_word = [](char c) { return is_letter(c) || is_digit(c); };
    const std::size_t end = run_end(name, i, is_word);
    if (end == i) {
      out += name[i++];
      continue;
    }
    append_word(name.substr(i, end - i), out);
    i = end;
  }
  replace(out, ".py(#)", ".py");
  while (out.ends_with("_#")) out.resize(out.size() - 2);
  return out.empty() ? std::string(name) : out;
}

std::string vendor_free_name(std::string_view name) {
  if (name.find("LaunchKernel") != std::string_view::npos &&
      name.find("::") == std::string_view::npos) {
    return "LaunchKernel";
  }
  for (const std::string_view prefix : {"cuda", "hip", "cu"}) {
    if (!name.starts_with(prefix) || name.size() == prefix.size()) continue;
    const std::string_view call = name.substr(prefix.size());
    if (!is_upper(call.front())) continue;
    return std::string(call.starts_with("Memcpy") ? "Memcpy" : call);
  }
  std::string out(name);
  replace(out, "miopen_", "cudnn_");
  return out;
}

}  // namespace traceap
