// SPDX-License-Identifier: Apache-2.0
#include "protocol.hpp"

#include <weft/runtime/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cassert>

#include <text/printable.hpp>

namespace kvcache {
namespace {

// The kind on the wire is the place in the variant, counted from 1.
constexpr std::array<std::string_view, std::variant_size_v<message>> names = {
    "want", "lent", "layer", "accepted", "evicted", "refused", "dropped"};

template <class... F>
struct overloaded : F... {
  using F::operator()...;
};
template <class... F>
overloaded(F...) -> overloaded<F...>;  // clang 16 cannot do without

[[noreturn]] void malformed(const std::string& what) {
  throw weft::error(weft::errc::malformed, "a message of the kvcache protocol: " + what);
}

/// Takes a message apart, front to back, and never reads beyond its end.
class reader {
 public:
  explicit reader(std::span<const std::byte> bytes) noexcept : rest_(bytes) {}

  std::uint64_t number(std::size_t width) {
    const auto field = bytes(width);
    std::uint64_t value = 0;
    for (std::size_t i = width; i-- > 0;) value = value << 8 | static_cast<std::uint64_t>(field[i]);
    return value;
  }
  /// One from 1 to `most`.
  std::uint64_t number(std::size_t width, std::uint64_t most, std::string_view what) {
    const std::uint64_t value = number(width);
    if (value == 0 || value > most) malformed(fmt::format("{} {}: 1 to {} are possible", value, what, most));
    return value;
  }
  weft::mr::remote_region region() {
    auto found = weft::mr::remote_region::unpack(rest_);
    static_cast<void>(bytes(found.packed_bytes()));
    return found;
  }
  std::string text() {
    if (rest_.size() > longest_text_bytes) malformed("a text is too long");
    const auto all = bytes(rest_.size());
    return text::printable({reinterpret_cast<const char*>(all.data()), all.size()});
  }
  void end() const {
    if (!rest_.empty()) malformed("the message is too long");
  }

 private:
  std::span<const std::byte> bytes(std::size_t count) {
    if (count > rest_.size()) malformed("the message is cut short");
    const auto front = rest_.first(count);
    rest_ = rest_.subspan(count);
    return front;
  }

  std::span<const std::byte> rest_;
};

want_message read_want(reader& from) {
  want_message want;
  want.sequence = from.number(8);
  want.of.pages = static_cast<std::uint32_t>(from.number(4, most_pages, "pages"));
  want.of.layers = static_cast<std::uint32_t>(from.number(4, most_layers, "layers"));
  want.of.block_bytes = from.number(8, most_block_bytes, "bytes of a block");
  return want;
}

lent_message read_lent(reader& from) {
  const std::uint64_t sequence = from.number(8);
  const std::uint64_t time = from.number(8, longest_loan.count(), "milliseconds of a loan");
  return {.sequence = sequence, .time = std::chrono::milliseconds(time), .pages = from.region()};
}

message read(std::size_t kind, reader& from) {
  switch (kind) {
    case 1:
      return read_want(from);
    case 2:
      return read_lent(from);
    case 3:
      return layer_message{.number = static_cast<std::uint32_t>(from.number(4))};
    case 4:
      return accepted_message{.sequence = from.number(8)};
    case 5: {
      const std::uint64_t sequence = from.number(8);
      return evicted_message{.sequence = sequence, .text = from.text()};
    }
    case 6: {
      const std::uint64_t sequence = from.number(8);
      return refused_message{.sequence = sequence, .text = from.text()};
    }
    case 7:
      return dropped_message{.sequence = from.number(8)};
    default:
      malformed("the message has an unknown kind");
  }
}

}  // namespace

void packed_message::append(std::uint64_t value, std::size_t width) noexcept {
  for (; width > 0; --width, value >>= 8) bytes_[size_++] = static_cast<std::byte>(value);
}

void packed_message::append(std::span<const std::byte> bytes) noexcept {
  assert(bytes.size() <= max_bytes - size_);
  std::ranges::copy(bytes, bytes_.begin() + static_cast<std::ptrdiff_t>(size_));
  size_ += bytes.size();
}

void packed_message::append(std::string_view text) noexcept {
  append(std::as_bytes(std::span(text.substr(0, longest_text_bytes))));
}

packed_message pack(const message& what) {
  packed_message packed;
  packed.append(what.index() + 1, 4);
  const auto fields = overloaded{
      [&](const want_message& want) {
        packed.append(want.sequence, 8);
        packed.append(want.of.pages, 4);
        packed.append(want.of.layers, 4);
        packed.append(want.of.block_bytes, 8);
      },
      [&](const lent_message& lent) {
        packed.append(lent.sequence, 8);
        packed.append(static_cast<std::uint64_t>(lent.time.count()), 8);
        packed.append(std::span<const std::byte>(lent.pages.pack()));
      },
      [&](const layer_message& layer) { packed.append(layer.number, 4); },
      [&](const accepted_message& accepted) { packed.append(accepted.sequence, 8); },
      [&](const evicted_message& evicted) {
        packed.append(evicted.sequence, 8);
        packed.append(evicted.text);
      },
      [&](const refused_message& refused) {
        packed.append(refused.sequence, 8);
        packed.append(refused.text);
      },
      [&](const dropped_message& dropped) { packed.append(dropped.sequence, 8); },
  };
  std::visit(fields, what);
  return packed;
}

message unpack(std::span<const std::byte> bytes) {
  reader from(bytes);
  const auto kind = static_cast<std::size_t>(from.number(4));
  message what = read(kind, from);
  from.end();
  return what;
}

std::string_view name_of(const message& what) noexcept { return names[what.index()]; }

}  // namespace kvcache
