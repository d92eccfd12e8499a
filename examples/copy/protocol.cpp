// SPDX-License-Identifier: Apache-2.0
#include "protocol.hpp"

#include <weft/runtime/error.hpp>

#include <algorithm>
#include <cassert>

namespace copy {
namespace {

// The kind on the wire is the place in the variant, counted from 1.
constexpr std::array<std::string_view, std::variant_size_v<message>> names = {
    "put", "get", "offer", "ready", "chunk", "taken", "end", "stored", "failed"};

template <class... F>
struct overloaded : F... {
  using F::operator()...;
};
template <class... F>
overloaded(F...) -> overloaded<F...>;  // clang 16 cannot do without

[[noreturn]] void malformed(const std::string& what) {
  throw weft::error(weft::errc::malformed, "a message of the copy protocol: " + what);
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
  std::span<const std::byte> bytes(std::size_t count) {
    if (count > rest_.size()) malformed("the message is cut short");
    const auto front = rest_.first(count);
    rest_ = rest_.subspan(count);
    return front;
  }
  weft::mr::remote_region region() {
    auto found = weft::mr::remote_region::unpack(rest_);
    static_cast<void>(bytes(found.packed_bytes()));
    return found;
  }
  std::string text(std::size_t longest) {
    if (rest_.size() > longest) malformed("a text is too long");
    const auto all = bytes(rest_.size());
    return {reinterpret_cast<const char*>(all.data()), all.size()};
  }
  [[nodiscard]] std::size_t left() const noexcept { return rest_.size(); }
  void end() const {
    if (!rest_.empty()) malformed("the message is too long");
  }

 private:
  std::span<const std::byte> rest_;
};

ready_message read_ready(reader& from) {
  ready_message ready;
  if (from.left() == 0) malformed("no slots");
  while (from.left() != 0) {
    if (ready.slots.size() == most_slots) malformed("too many slots");
    ready.slots.push_back(from.region());
  }
  return ready;
}

message read(std::size_t kind, reader& from) {
  switch (kind) {
    case 1: {
      const std::uint64_t size = from.number(8);
      return put_message{.size = size, .name = from.text(longest_text_bytes)};
    }
    case 2:
      return get_message{.name = from.text(longest_text_bytes)};
    case 3:
      return offer_message{.size = from.number(8)};
    case 4:
      return read_ready(from);
    case 5:
      return chunk_message{.index = from.number(8)};
    case 6:
      return taken_message{.index = from.number(8)};
    case 7: {
      end_message end{};
      std::ranges::copy(from.bytes(end.sha.size()), end.sha.begin());
      return end;
    }
    case 8:
      return stored_message{};
    case 9:
      return failed_message{.text = printable(from.text(longest_text_bytes))};
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

void packed_message::append(std::string_view text) noexcept { append(std::as_bytes(std::span(text))); }

packed_message pack(const message& what) {
  packed_message packed;
  packed.append(what.index() + 1, 4);
  const auto fields = overloaded{
      [&](const put_message& put) {
        packed.append(put.size, 8);
        packed.append(std::string_view(put.name).substr(0, longest_text_bytes));
      },
      [&](const get_message& get) { packed.append(std::string_view(get.name).substr(0, longest_text_bytes)); },
      [&](const offer_message& offer) { packed.append(offer.size, 8); },
      [&](const ready_message& ready) {
        for (const auto& slot : ready.slots) packed.append(std::span<const std::byte>(slot.pack()));
      },
      [&](const chunk_message& chunk) { packed.append(chunk.index, 8); },
      [&](const taken_message& taken) { packed.append(taken.index, 8); },
      [&](const end_message& end) { packed.append(std::span<const std::byte>(end.sha)); },
      [](const stored_message&) {},
      [&](const failed_message& failed) { packed.append(std::string_view(failed.text).substr(0, longest_text_bytes)); },
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

}  // namespace copy
