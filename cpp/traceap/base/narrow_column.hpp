#pragma once
// A column of integers in as few bytes a row as its values need.

#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

namespace traceap {

/// Most traces number streams, devices and categories below 255, and correlations below 2^32. So a
/// row takes 1, 2, 4 or sizeof(T) bytes, the same for all rows: what the largest value needs. The
/// highest code of a width stands for `kAbsent`; a value below 0 needs the full width.
template <typename T, T kAbsent>
class NarrowColumn {
 public:
  std::size_t size() const { return bytes_.size() / width_; }
  bool empty() const { return bytes_.empty(); }

  T operator[](std::size_t row) const {
    switch (width_) {
      case 1:
        return decoded<std::uint8_t>(row);
      case 2:
        return decoded<std::uint16_t>(row);
      case sizeof(T):
        return load<T>(row);
      default:
        return decoded<std::uint32_t>(row);
    }
  }
  void set(std::size_t row, T value) {
    fit(value);
    store(row, value);
  }
  void push_back(T value) {
    fit(value);
    bytes_.resize(bytes_.size() + width_);
    store(size() - 1, value);
  }
  void append(std::span<const T> values) {
    for (const T value : values) fit(value);
    const std::size_t before = size();
    bytes_.resize(bytes_.size() + values.size() * width_);
    for (std::size_t i = 0; i < values.size(); ++i) store(before + i, values[i]);
  }
  /// The values of some rows, in their order.
  NarrowColumn pick(std::span<const std::uint32_t> rows) const {
    NarrowColumn picked;
    picked.width_ = width_;
    picked.bytes_.resize(rows.size() * width_);
    std::uint8_t* to = picked.bytes_.data();
    const auto copy = [&]<std::size_t n>(std::integral_constant<std::size_t, n>) {
      for (const std::size_t row : rows) {
        std::memcpy(to, bytes_.data() + row * n, n);
        to += n;
      }
    };
    switch (width_) {
      case 1:
        copy(std::integral_constant<std::size_t, 1>());
        break;
      case 2:
        copy(std::integral_constant<std::size_t, 2>());
        break;
      case sizeof(T):
        copy(std::integral_constant<std::size_t, sizeof(T)>());
        break;
      default:
        copy(std::integral_constant<std::size_t, 4>());
    }
    return picked;
  }
  /// All values at full width.
  std::vector<T> values() const {
    std::vector<T> all(size());
    for (std::size_t row = 0; row < all.size(); ++row) all[row] = (*this)[row];
    return all;
  }

 private:
  template <typename Code>
  Code load(std::size_t row) const {
    Code code;
    std::memcpy(&code, bytes_.data() + row * sizeof(Code), sizeof(Code));
    return code;
  }
  template <typename Code>
  T decoded(std::size_t row) const {
    const Code code = load<Code>(row);
    return code == std::numeric_limits<Code>::max() ? kAbsent : static_cast<T>(code);
  }
  template <typename Code>
  void save(std::size_t row, Code code) {
    std::memcpy(bytes_.data() + row * sizeof(Code), &code, sizeof(Code));
  }
  void store(std::size_t row, T value) {
    switch (width_) {
      case 1:  // the highest code is what -1 becomes
        return save(row, static_cast<std::uint8_t>(value == kAbsent ? T(-1) : value));
      case 2:
        return save(row, static_cast<std::uint16_t>(value == kAbsent ? T(-1) : value));
      case sizeof(T):
        return save(row, value);
      default:
        return save(row, static_cast<std::uint32_t>(value == kAbsent ? T(-1) : value));
    }
  }

  static std::size_t width_for(T value) {
    if (value == kAbsent) return 1;
    if constexpr (std::is_signed_v<T>) {
      if (value < 0) return sizeof(T);
    }
    const auto size = static_cast<std::uint64_t>(value);
    if (size < std::numeric_limits<std::uint8_t>::max()) return 1;
    if (size < std::numeric_limits<std::uint16_t>::max()) return 2;
    return size < std::numeric_limits<std::uint32_t>::max() ? 4 : sizeof(T);
  }
  void fit(T value) {
    const std::size_t width = width_for(value);
    if (width > width_) widen(width);
  }
  void widen(std::size_t width) {
    NarrowColumn wide;
    wide.width_ = width;
    wide.bytes_.resize(size() * width);
    for (std::size_t row = 0; row < size(); ++row) wide.store(row, (*this)[row]);
    *this = std::move(wide);
  }

  std::vector<std::uint8_t> bytes_;
  std::size_t width_ = 1;
};

}  // namespace traceap
